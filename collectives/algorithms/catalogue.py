"""Every algorithm, one line each: what it is called, who makes it, and where it cannot be used.

A new algorithm is one file in algorithms/ and one line here; check, cost, drawing, export, command line, benchmark and
tests then know it.
"""

import functools
import inspect
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from lanterne.collectives.algorithms import (
    allpairs,
    binomial,
    bruck,
    gather,
    outside,
    pairwise,
    pipelined_chain,
    recursive_doubling,
    rhd,
    ring,
    scan,
    scatter_allgather,
    tree,
)
from lanterne.collectives.algorithms.hierarchical import all_reduce as hier
from lanterne.collectives.algorithms.hierarchical import spread
from lanterne.collectives.algorithms.hierarchical.compose import Nodes
from lanterne.collectives.algorithms.late import any_arrival, stragglar
from lanterne.collectives.algorithms.late import broadcast as late_broadcast
from lanterne.collectives.algorithms.late import chain as late_chain
from lanterne.collectives.algorithms.late import direct as late_direct
from lanterne.collectives.algorithms.late import group as late_group
from lanterne.collectives.algorithms.late import hybrid as late_hybrid
from lanterne.collectives.algorithms.late import join as late_join
from lanterne.collectives.algorithms.late import join_allpairs as late_join_allpairs
from lanterne.collectives.algorithms.late.stragglar_matching import Progress
from lanterne.collectives.schedule.contracts import CONTRACTS
from lanterne.collectives.schedule.cost import CostModel
from lanterne.collectives.schedule.ir import CollectiveSchedule, LateRank, late_set
from lanterne.collectives.schedule.passes import split_chunks
from lanterne.errors import InputError, one_of

# The name under which benchmarks and the Communicator know the transport library's own collectives.
NATIVE = "native"
# And those through memory that the ranks of one host share (collectives/shared).
SHARED = "shared"
UNSCHEDULED = (NATIVE, SHARED)

Generator: TypeAlias = Callable[..., CollectiveSchedule]
Law: TypeAlias = Callable[[int], tuple[float, int, int, int]]


def _any(p: int) -> None:
    return None


def _one(p: int) -> int:
    return 1


def _levels(p: int) -> int:
    return (p - 1).bit_length()


def _early_over_nodes(n: int, num_chunks: int) -> tuple[int, float]:
    """As late_join's, behind a round inside the nodes."""
    rounds, chunks = late_join.early_rounds(n, num_chunks)
    return rounds + 1, chunks


@functools.cache
def _takes_only(generator: Generator) -> bool:
    return "only" in inspect.signature(generator).parameters


class Algorithm(NamedTuple):
    """A line of the registry.

    Attributes:
        collective, name: the key.
        generator: (world_size, [root], [late_rank], [num_chunks]) -> CollectiveSchedule; pure.
        summary: one line for people.
        refuses: world_size -> why it cannot be used with so many ranks, or None.
        late: takes `late_rank`, a rank that is expected to come last.
        several: takes a tuple of such ranks as well.
        cut: takes `joined`, how many of the chunks the others sum before that comes; None is its own choice.
        chunked: takes `num_chunks`, any number; None is its own choice. Others are split evenly, in multiples of
            their own.
        law: world_size -> (a, c, k, grain): the cost that num_chunks = m influences, with a late rank that of the
            join, is a m + c rounds of k chunks at each port; counts beyond `grain` had better be multiples of it. None
            where there is nothing to choose. Of those that take nodes: the number of nodes, and m chunks of a rail.
        least: as `law`, the least m: with fewer chunks there are as many rounds.
        nodes: takes `nodes`, the ranks of each node; None: one rank on each.
        early: of a late-rank algorithm, (world_size, num_chunks) -> (rounds, chunks of a message) before the join; of
            nodes as `law`.
        slow: may search for seconds, and takes `progress`.
        stream: all that a rank receives comes from one peer, where ranks are more than two; of those that take nodes,
            what comes from others, where these have as many ranks each.
        leaves: takes `slow`, the nodes with slow NICs, which its name lists: "hier_slow.2.5".
        one_leaf: of those, `auto` weighs it where there is one such node; with several it is hardly ever the best.
        any_arrivals: takes `arrivals`, ArrivalRounds; `auto` does not weigh it.
        in_turn: its ranks post few sends at once, in the order of the rounds, where receives are few (credits).
        outside: it is not of the registry (outside.py).
    """

    collective: str
    name: str
    generator: Generator
    summary: str
    refuses: Callable[[int], str | None] = _any
    late: bool = False
    several: bool = False
    cut: bool = False
    chunked: bool = False
    law: Law | None = None
    least: Callable[[int], int] = _one
    nodes: bool = False
    early: Callable[[int, int], tuple[int, float]] | None = None
    slow: bool = False
    stream: bool = False
    leaves: bool = False
    one_leaf: bool = False
    any_arrivals: bool = False
    in_turn: bool = False
    outside: bool = False

    @property
    def own(self) -> bool:
        """Whether it takes `only`, a rank, and makes that rank's transfers alone, as quickly as those are few."""
        return not self.outside and not self.leaves and _takes_only(self.generator)


# A schedule of more ranks, or of more (rank, chunk) cells, would take gigabytes.
MAX_RANKS, MAX_CELLS = 2048, 2**23
# Of one rank's part.
MAX_OWN_RANKS = 2**14

# fmt: off
_LINES: tuple[Algorithm, ...] = (
    Algorithm("all_reduce", "ring", ring.ring_all_reduce, "around the ring twice; fewest bytes, many rounds",
              stream=True),
    Algorithm("all_reduce", "rhd", rhd.rhd_all_reduce, "halving, then doubling; best for powers of two"),
    Algorithm("all_reduce", "bruck", bruck.bruck_all_reduce, "circulant; fewest rounds and bytes for any number"),
    Algorithm("all_reduce", "allpairs", allpairs.allpairs_all_reduce, "everybody to everybody at once; needs a switch"),
    Algorithm("all_reduce", "recursive_doubling", recursive_doubling.recursive_doubling_all_reduce,
              "whole buffers, fewest rounds; for small buffers"),
    Algorithm("all_reduce", "tree", tree.tree_all_reduce, "up and down two pipelined trees", chunked=True,
              law=lambda p: (2, 2 + 4 * _levels(p), 1, 2)),
    Algorithm("all_reduce", "late_broadcast", late_broadcast.late_broadcast_all_reduce,
              "the others finish, then the late rank's buffer is added whole", late_join.refuses_one, late=True),
    Algorithm("all_reduce", "stragglar", stragglar.stragglar_all_reduce,
              "StragglAR: a chunk meets the late rank in every round", stragglar.refuses_odd, late=True, slow=True),
    Algorithm("all_reduce", "late_join", late_join.late_join_all_reduce,
              "joins the late rank in the fewest rounds, any number of ranks and chunks", late_join.refuses_one,
              late=True, chunked=True, law=lambda p: (1, _levels(p) - 1, 1, p - 1), early=late_join.early_rounds,
              in_turn=True),
    Algorithm("all_reduce", "late_chain", late_chain.late_chain_all_reduce,
              "one pipelined ring through the late rank; for long delays", late_join.refuses_one,
              late=True, chunked=True, law=lambda p: (1, p - 1, 1, 1), early=lambda p, m: (m + p - 3, 1)),
    Algorithm("all_reduce", "late_group", late_group.late_group_all_reduce,
              "several late ranks bring their chunks to the owners of sums", late_join.refuses_one, late=True,
              several=True, chunked=True, law=lambda p: (1, p, 1, 1), in_turn=True),
    Algorithm("all_reduce", "late_join_allpairs", late_join_allpairs.late_join_allpairs_all_reduce,
              "the late rank exchanges with all at once; few rounds, needs a switch", late_join.refuses_one,
              late=True, chunked=True, law=lambda p: (1 / (p - 1), 1, p - 1, p - 1)),
    Algorithm("all_reduce", "late_direct", late_direct.late_direct_all_reduce,
              "the others finish, then all exchange with the late rank at once; for small buffers",
              late_join.refuses_one, late=True),
    Algorithm("all_reduce", "late_hybrid", late_hybrid.late_hybrid_all_reduce,
              "a part joins late, the rest runs around a ring; for short delays", late_join.refuses_one,
              late=True, cut=True, chunked=True, in_turn=True),
    Algorithm("all_reduce", "any_arrival", any_arrival.any_arrival_all_reduce,
              "merges what has arrived, whenever each rank does", any_arrival.refuses_many, chunked=True,
              law=lambda p: (2 * max(1, p - 1) / p, 2 * _levels(p), 1, 1), any_arrivals=True, in_turn=True),
    Algorithm("all_reduce", "hier_any_arrival", any_arrival.hier_any_arrival_all_reduce,
              "inside the nodes, and across them what has arrived, whenever each does", chunked=True, nodes=True,
              law=lambda n: (2 * max(1, n - 1) / n, 2 * _levels(n), 1, 1), any_arrivals=True, in_turn=True),
    Algorithm("all_reduce", "hier_ring", hier.hier_ring_all_reduce, "inside the nodes, a ring across them, inside",
              chunked=True, nodes=True, law=lambda n: (2 * max(1, n - 1) / n, 3, 1, n), least=int, stream=True),
    Algorithm("all_reduce", "hier_bruck", hier.hier_bruck_all_reduce, "as hier_ring, with few rounds across",
              chunked=True, nodes=True),
    Algorithm("all_reduce", "hier_late_join", hier.hier_late_join_all_reduce,
              "inside the nodes, and a late join across them", late_join.refuses_one, late=True, several=True,
              chunked=True, nodes=True, law=lambda n: (1, _levels(n) + 3, 1, 1), early=_early_over_nodes),
    Algorithm("all_reduce", "hier_late_chain", hier.hier_late_chain_all_reduce,
              "inside the nodes, and one ring across them through the late one", late_join.refuses_one, late=True,
              several=True, chunked=True, nodes=True, law=lambda n: (1, n + 2, 1, 1),
              early=lambda n, m: (max(0, m + n - 3) + 1, 1)),
    Algorithm("all_reduce", "hier_slow", hier.hier_slow_all_reduce,
              "nodes with a slow NIC hang on a ring of the others: hier_slow.2.5", chunked=True, nodes=True,
              law=lambda n: (1, 2 * n, 1, 1), leaves=True),
    Algorithm("all_reduce", "hier_join", hier.hier_join_all_reduce,
              "nodes with a slow NIC join the sums of the others, as late ones do: hier_join.2", chunked=True,
              nodes=True, law=lambda n: (1, _levels(n) + 3, 1, 1), leaves=True, one_leaf=True),
    Algorithm("all_reduce", "hier_late_slow", hier.hier_late_slow_all_reduce,
              "as hier_slow, with the late rank's node beside the slow ones", late_join.refuses_one, late=True,
              several=True, chunked=True, nodes=True, law=lambda n: (1, n, 1, 1), leaves=True),
    Algorithm("reduce_scatter", "ring", ring.ring_reduce_scatter, "around the ring; fewest bytes, many rounds",
              stream=True),
    Algorithm("reduce_scatter", "bruck", bruck.bruck_reduce_scatter, "circulant; fewest rounds and bytes, any number"),
    Algorithm("reduce_scatter", "rhd", rhd.rhd_reduce_scatter, "recursive halving; fewest rounds and bytes",
              rhd.refuses_other_than_powers_of_two),
    Algorithm("reduce_scatter", "allpairs", allpairs.allpairs_reduce_scatter, "everybody to everybody; needs a switch"),
    Algorithm("reduce_scatter", "hier_ring", spread.hier_ring_reduce_scatter, "inside the nodes, a ring across them",
              nodes=True),
    Algorithm("all_gather", "ring", ring.ring_all_gather, "around the ring; fewest bytes, many rounds",
              stream=True),
    Algorithm("all_gather", "bruck", bruck.bruck_all_gather, "circulant; fewest rounds and bytes for any number"),
    Algorithm("all_gather", "rhd", rhd.rhd_all_gather, "recursive doubling; fewest rounds and bytes",
              rhd.refuses_other_than_powers_of_two),
    Algorithm("all_gather", "allpairs", allpairs.allpairs_all_gather, "everybody to everybody; needs a switch"),
    Algorithm("all_gather", "hier_ring", spread.hier_ring_all_gather, "a ring across the nodes, and inside them",
              nodes=True),
    Algorithm("broadcast", "binomial", binomial.binomial_broadcast, "whole buffers down a tree; fewest rounds"),
    Algorithm("broadcast", "scatter_allgather", scatter_allgather.scatter_allgather_broadcast,
              "parts down a tree, then gathered; twice the bytes, few rounds"),
    Algorithm("broadcast", "chain", pipelined_chain.chain_broadcast, "pieces through all ranks in a row; fewest bytes",
              chunked=True, law=lambda p: (1, p - 2, 1, 1)),
    Algorithm("broadcast", "tree", tree.tree_broadcast, "down two pipelined trees; few bytes, few rounds",
              chunked=True, law=lambda p: (1, 1 + 2 * _levels(p), 1, 2)),
    Algorithm("broadcast", "hier_tree", spread.hier_tree_broadcast, "down two trees of nodes, and inside them",
              chunked=True, nodes=True, law=lambda n: (1, 2 + 2 * _levels(n), 1, 2)),
    Algorithm("broadcast", "hier_chain", spread.hier_chain_broadcast, "from node to node in a row, and inside them",
              chunked=True, nodes=True, law=lambda n: (1, n, 1, 1)),
    Algorithm("reduce", "binomial", binomial.binomial_reduce, "whole buffers up a tree; fewest rounds"),
    Algorithm("reduce", "scatter_allgather", scatter_allgather.scatter_allgather_reduce,
              "reduce-scatter, then gathered; twice the bytes, few rounds"),
    Algorithm("reduce", "chain", pipelined_chain.chain_reduce, "pieces through all ranks in a row; fewest bytes",
              chunked=True, law=lambda p: (1, p - 2, 1, 1)),
    Algorithm("reduce", "tree", tree.tree_reduce, "up two pipelined trees; few bytes, few rounds",
              chunked=True, law=lambda p: (1, 1 + 2 * _levels(p), 1, 2)),
    Algorithm("reduce", "hier_tree", spread.hier_tree_reduce, "inside the nodes, and up two trees of them",
              chunked=True, nodes=True, law=lambda n: (1, 2 + 2 * _levels(n), 1, 2)),
    Algorithm("reduce", "hier_chain", spread.hier_chain_reduce, "inside the nodes, and from node to node in a row",
              chunked=True, nodes=True, law=lambda n: (1, n, 1, 1)),
    Algorithm("all_to_all", "pairwise", pairwise.pairwise_all_to_all, "every part straight to its owner; fewest bytes"),
    Algorithm("all_to_all", "bruck", bruck.bruck_all_to_all, "parts travel by powers of two; fewest rounds"),
    Algorithm("all_to_all", "allpairs", allpairs.allpairs_all_to_all, "everybody to everybody; needs a switch"),
    Algorithm("gather", "direct", gather.direct_gather, "every part straight to the root; needs a switch"),
    Algorithm("gather", "binomial", gather.binomial_gather, "parts up a tree; fewest messages at a port"),
    Algorithm("scatter", "direct", gather.direct_scatter, "every part straight to its owner; needs a switch"),
    Algorithm("scatter", "binomial", gather.binomial_scatter, "parts down a tree; fewest messages at a port"),
    Algorithm("scan", "doubling", scan.doubling_scan, "whole buffers, distances doubling; fewest rounds"),
    Algorithm("scan", "chain", scan.chain_scan, "pieces through all ranks in a row; fewest bytes", chunked=True,
              law=lambda p: (1, p - 2, 1, 1)),
    Algorithm("exscan", "doubling", scan.doubling_exscan, "handed on, then a scan by doubling; fewest rounds"),
    Algorithm("exscan", "chain", scan.chain_exscan, "handed on, then pieces through all in a row; fewest bytes",
              chunked=True, law=lambda p: (1, p - 3, 1, 1)),
    Algorithm("barrier", "dissemination", bruck.dissemination_barrier, "everybody hears of everybody by doubling"),
)
# fmt: on
ALGORITHMS: dict[tuple[str, str], Algorithm] = {(line.collective, line.name): line for line in _LINES}


def algorithms_for(collective: str) -> tuple[Algorithm, ...]:
    """The registry lines of `collective`, in the order of the registry.

    Raises:
        InputError: no such collective.
    """
    if collective not in CONTRACTS:
        raise InputError(f"collective: {one_of(collective, CONTRACTS)}")
    return tuple(line for line in _LINES if line.collective == collective)


def find_algorithm(collective: str, name: str) -> Algorithm:
    """The line of algorithm `name` for `collective`: of the registry, or made for one from outside (outside.py).

    Raises:
        InputError: no such collective or algorithm.
    """
    lines = algorithms_for(collective)
    if name == NATIVE:
        raise InputError(f"algorithm: {NATIVE} is the transport library's own, which has no schedule")
    if name == SHARED:
        raise InputError(f"algorithm: {SHARED} goes through the memory of one host, which has no schedule")
    if (collective, name) in ALGORITHMS:
        return ALGORITHMS[collective, name]
    base, _, numbers = name.partition(".")
    if (collective, base) in ALGORITHMS and ALGORITHMS[collective, base].leaves:
        return _on_leaves(ALGORITHMS[collective, base], name, numbers)
    generator = outside.find_outside(name)
    if generator is None:
        known = [*(line.name for line in lines), *outside.offered()]
        raise InputError(f"algorithm: {one_of(name, known, f' for {collective}')}, a file or module:function")
    taken = outside.parameters(generator, name)
    refuses = outside.refuses_but(outside.read_file(name).world_size) if outside.is_file(name) else _any
    return Algorithm(
        collective,
        name,
        generator,
        "from outside",
        refuses,
        late="late_rank" in taken,
        chunked="num_chunks" in taken,
        nodes="nodes" in taken,
        outside=True,
    )


def given_line(schedule: CollectiveSchedule) -> Algorithm:
    """The line of a schedule from outside, of which nothing is known but that."""
    generator, refuses = outside.file_generator(schedule), outside.refuses_but(schedule.world_size)
    return Algorithm(
        schedule.collective,
        schedule.algorithm,
        generator,
        "from outside",
        refuses,
        chunked=True,
        in_turn=bool(schedule.joins),
        outside=True,
    )


def on_leaves(line: Algorithm, slow: Sequence[int]) -> Algorithm:
    """`line`, one that takes them, with the nodes `slow` in its name."""
    return find_algorithm(line.collective, ".".join(map(str, (line.name, *slow))))


def _on_leaves(line: Algorithm, name: str, numbers: str) -> Algorithm:
    if not re.fullmatch(r"\d{1,5}(\.\d{1,5})*", numbers):
        raise InputError(f"algorithm: got {name!r}, expected the numbers of slow nodes behind it: {line.name}.2.5")
    slow = tuple(sorted({int(each) for each in numbers.split(".")}))

    def law(n: int) -> tuple[float, int, int, int]:
        # The others, k of them, sum and gather in k - 1 rounds each; with late ranks they have summed before.
        k = max(1, n - len(slow))
        return 1, (k if line.late else 2 * k) + 2, 1, 1

    return line._replace(name=name, generator=functools.partial(line.generator, slow=slow), law=law)


def make_schedule(
    collective: str,
    name: str,
    world_size: int,
    num_chunks: int | None = None,
    root: int | None = None,
    late_rank: LateRank = None,
    progress: Progress | None = None,
    joined: int | None = None,
    nodes: Nodes | None = None,
    only: int | None = None,
    arrivals: any_arrival.ArrivalRounds | None = None,
) -> CollectiveSchedule:
    """The (unchecked) schedule of a registered algorithm.

    Args:
        num_chunks: None for the algorithm's own choice.
        root: of rooted collectives; None is rank 0.
        late_rank: of the algorithms that expect one, a tuple of several where they can be; None is the last rank.
        progress: called with one line of text now and then by algorithms that search for long; None for silence.
        joined: of late_hybrid, 0 to num_chunks; None for its own choice.
        nodes: the ranks of each node, for those that know them; None: one rank on each.
        only: of the algorithms that are `own`: the transfers of this rank, and no others.
        arrivals: of the algorithms that take `any_arrivals`.

    Raises:
        InputError: unknown names, a rank out of range, or a world size or chunk count that the algorithm cannot use.
    """
    line = find_algorithm(collective, name)
    most = MAX_RANKS if only is None else MAX_OWN_RANKS
    if not 1 <= world_size <= most:
        raise InputError(f"world size: got {world_size}, expected 1 to {most} for {name} {collective}")
    reason = line.refuses(world_size)
    if reason:
        raise InputError(f"{name} {collective}: got {world_size} ranks, {reason}")
    options: dict[str, Any] = {}
    if CONTRACTS[collective].rooted:
        options["root"] = _rank("root", 0 if root is None else root, world_size)
    elif root is not None:
        raise InputError(f"root: got {root}, but {collective} has none")
    if line.late:
        options["late_rank"] = _check_late(line, world_size - 1 if late_rank is None else late_rank, world_size)
    elif late_rank is not None:
        raise InputError(f"late rank: got {late_rank}, but {name} {collective} expects none")
    if joined is not None:
        options["joined"] = _check_joined(line, joined, num_chunks)
    if arrivals is not None:
        if not line.any_arrivals:
            raise InputError(f"arrivals: got {arrivals}, but {name} {collective} takes none")
        options["arrivals"] = arrivals
    if only is not None:
        if not line.own:
            raise InputError(f"only: got rank {only}, but {name} {collective} makes those of all ranks together")
        options["only"] = _rank("only", only, world_size)
    if num_chunks is not None and not 1 <= num_chunks <= max(world_size**2, MAX_CELLS // world_size):
        limit = max(world_size**2, MAX_CELLS // world_size)
        raise InputError(f"chunks: got {num_chunks}, expected 1 to {limit} with {world_size} ranks")
    if line.nodes and nodes is not None:
        if sorted(rank for ranks in nodes for rank in ranks) != list(range(world_size)) or not all(nodes):
            raise InputError(f"{name} {collective}: got nodes {nodes}, expected ranks 0 to {world_size - 1} once each")
        options["nodes"] = nodes
    if line.slow:
        options["progress"] = progress
    if line.chunked:
        options["num_chunks"] = num_chunks
    if line.outside:
        made = outside.call(line.generator, name, world_size, options)
        schedule = outside.checked_made(made, name, collective, world_size, options.get("root"))
    else:
        schedule = line.generator(world_size, **options)
    return schedule if line.chunked else split_chunks(schedule, num_chunks)


def _check_joined(line: Algorithm, joined: int, num_chunks: int | None) -> int:
    if not line.cut:
        raise InputError(f"joined: got {joined}, but {line.name} {line.collective} cuts nothing")
    if num_chunks is None or not 0 <= joined <= num_chunks:
        raise InputError(f"joined: got {joined} with num_chunks {num_chunks}, expected both, and at most so many")
    return joined


def _check_late(line: Algorithm, late_rank: LateRank, world_size: int) -> LateRank:
    """`late_rank`, or where several ranks are late, the tuple of them in order."""
    late = late_set(late_rank)
    for rank in late:
        _rank("late rank", rank, world_size)
    if len(late) == 1:
        return late[0]
    if not line.several:
        raise InputError(f"late rank: got {late_rank}, but {line.name} {line.collective} expects one")
    if not 0 < len(set(late)) == len(late) < world_size:
        raise InputError(f"late rank: got {late_rank}, expected different ones, fewer than {world_size}")
    return late


def _rank(what: str, rank: int, world_size: int) -> int:
    if not 0 <= rank < world_size:
        raise InputError(f"{what}: got {rank}, expected 0 to {world_size - 1}")
    return rank


def best_num_chunks(
    line: Algorithm, world_size: int, nbytes: float, model: CostModel, min_chunk_nbytes: int = 1
) -> int | None:
    """The chunk count of a pipelined algorithm that the model likes best; None where the algorithm has no choice.

    Args:
        nbytes: of the buffer.
        min_chunk_nbytes: no chunk shall be smaller.

    Cost: (a m + c) (alpha + k nbytes beta / m) is least at m = sqrt(c k nbytes beta / (a alpha)).
    """
    if line.law is None:
        return None
    a, c, k, grain = line.law(world_size)
    most = max(1, int(nbytes // max(1, min_chunk_nbytes)))
    alpha, beta = (float(x) for x in model.alpha_beta(nbytes))
    count, least = 1, min(line.least(world_size), most)
    # Alpha and beta may depend on the chunk's size: the second pass looks them up for the count of the first.
    for _ in range(2):
        ideal = (max(c, 0) * k * nbytes * beta / (a * alpha)) ** 0.5 if alpha else most
        ideal = round(ideal / grain) * grain if ideal > grain else round(ideal)
        count = int(min(max(least, ideal), most))
        alpha, beta = (float(x) for x in model.alpha_beta(nbytes / count))
    if not model.pieces:
        return count
    # Between pieces the law has several minima: try counts a factor of 1.2 apart.
    steps = {int(1.2**i) for i in range(1 + int(math.log(most, 1.2)))}
    counts = {min(most, max(least, round(m / grain)) * int(grain) if m > grain else m) for m in steps} | {count}

    def time_s(m: int) -> float:
        return (a * m + c) * float(model.message_s(k * nbytes / m, k))

    return min(sorted(counts), key=time_s)
