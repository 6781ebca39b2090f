"""What `auto` knows of a group: alpha, beta and gamma, measured with the executor, and the choices made from them.

`lanterne.init()` measures, or takes what an earlier job measured on the same hosts (LANTERNE_CACHE, a folder; "off" for
none), while all ranks are there; so no call of the user's ever waits for a measurement, and a late rank does not spoil
it. Rank 0's answer is everybody's, so all ranks choose alike; groups have that of the communicator they were split
from. Threads (`lanterne.spawn`) go by THREADS. LANTERNE_ALGORITHM overrides: "ring" for every collective that has it,
or "all_reduce=ring,broadcast=chain". Every new choice is logged, with its reason, at level INFO.
"""

import logging
import os
from dataclasses import replace
from typing import Any, NamedTuple

from lanterne.collectives.algorithms.catalogue import ALGORITHMS, SHARED, Algorithm, find_algorithm
from lanterne.collectives.auto.learn import learn
from lanterne.collectives.auto.pacing import LEAST_HALF_NBYTES, OF_A_CHUNK, over_nodes, sustained
from lanterne.collectives.auto.predict import (
    MIN_CHUNK_NBYTES,
    Factor,
    Links,
    Prediction,
    candidates,
    chunk_count,
    corrected,
    goes_through_memory,
    ordinary_by_law_s,
    predictions,
)
from lanterne.collectives.auto.trials import TrialGroup
from lanterne.collectives.schedule.cost import CostModel
from lanterne.collectives.topology.topology import Topology
from lanterne.errors import InputError

log: logging.Logger = logging.getLogger("lanterne.collectives")

# A schedule of more ranks is priced in seconds; from there on the first of the registry that can run stands for auto.
MAX_PRICED_RANKS = 128
# So many sizes of calls are remembered.
MAX_SIZES = 1024
# Algorithms that differ by less are alike. Of those that were tried the model's favourite, which sends the fewest
# messages or bytes, does best among the disturbances of a program; of sizes too long to try the first in the registry,
# the ring, is the simplest for a network.
TIE = 1.02
# Of any collective.
NAMES = {name for _, name in ALGORITHMS}
# Threads of one process, roughly: what one measures there is mostly who held the interpreter.
THREADS = CostModel(30e-6, 1 / 5e9, 1 / 10e9, serial_messages=True)

# Ranks with a GPU each, over NCCL on fast links: for those that share one in a test, of which nothing can be measured.
GPUS = CostModel(15e-6, 1 / 150e9, 1 / 1e12, in_rounds=True)


class Choice(NamedTuple):
    """What `auto` stands for in one call: an algorithm, its num_chunks (None: its own), and why."""

    algorithm: str
    num_chunks: int | None
    reason: str


class Tuning:
    """The choices of one communicator.

    Args:
        communicator: the group; it measures with its own collectives.

    Attributes: `model`, a CostModel, None where there is none; `factors`, how far algorithms that were tried are off it
        (predict.Factor); `topology`, a Topology where ranks share nodes, else None; `source`, "measured", "cache",
        "threads" or "none".
    """

    def __init__(self, communicator: TrialGroup):
        self._communicator = communicator
        self.adopt(None, "none")

    def adopt(
        self,
        model: CostModel | None,
        source: str,
        factors: tuple[Factor, ...] = (),
        topology: Topology | None = None,
    ) -> None:
        """Choose by `model`, `factors` and `topology` from now on; call it alike on all ranks."""
        self.topology: Topology | None = None
        in_rounds = self._communicator.transport.capabilities.stream_ordered
        if model is not None and in_rounds:
            model = replace(model, in_rounds=True)
        if topology is not None and not topology.is_flat:
            self.topology = replace(topology, in_rounds=in_rounds)
        # By their arguments, calls as they were checked (execute/arguments.py).
        self.resolved: dict[tuple[object, ...], tuple[Any, ...]] = {}
        self._choices: dict[tuple[str, int, bool], Choice] = {}
        self._ordinary_s: dict[tuple[str, int], float] = {}
        self._chunk_counts: dict[tuple[str, int, str], int | None] = {}
        self.model = model
        self.source = source
        self.factors = factors

    def learn(self, *, shares_memory: bool = False) -> None:
        """Choose by what is measured now, or by the cache. A collective call.

        Args:
            shares_memory: the ranks do: short calls are none of messages.
        """
        if self._communicator.world_size > 1:
            learned = learn(self._communicator, shares_memory=shares_memory)
            self.adopt(learned.model, learned.source, learned.factors, learned.topology)
            log.info("cost model (%s): %s", self.source, self.links)
            if self.topology is not None:
                # Numba loads the event loops now, not in the user's first call.
                self.choose("all_reduce", 1)

    @property
    def links(self) -> Links | None:
        """What predictions go by: the topology where ranks share nodes, else the model."""
        return self.model if self.topology is None else self.topology

    @property
    def model_over_nodes(self) -> CostModel | None:
        """What messages over nodes are cut by; see pacing.over_nodes."""
        if self.model is None or self.topology is None:
            return self.model
        return over_nodes(self.model, self.topology.inside_models)

    @property
    def nic_sharers(self) -> int:
        """The ranks that share a NIC, at most."""
        return 1 if self.topology is None else self.topology.nic_sharers

    @property
    def own_nic_sharers(self) -> int:
        """The ranks that share this rank's NIC."""
        return 1 if self.topology is None else self.topology.sharers_of_nic(self._communicator.rank)

    def choose(self, collective: str, nbytes: int, *, shared: bool = False) -> Choice:
        """The Choice for `collective` on buffers of `nbytes`, the larger of a rank's two; the same on all ranks.

        Sizes are rounded up to a power of two, so that there are few choices to make.

        Args:
            shared: the buffers are of the host, and the ranks share memory.

        Raises:
            InputError: LANTERNE_ALGORITHM names an algorithm that does not exist or cannot be used.
        """
        size = 1 << max(0, nbytes - 1).bit_length()
        choice = self._choices.get((collective, size, shared))
        if choice is None:
            choice = self._choices[collective, size, shared] = self._make(collective, size, shared)
            log.info("%s of %d bytes: %s, %s", collective, nbytes, choice.algorithm, choice.reason)
        return choice

    def explain(self, collective: str, nbytes: int) -> list[Prediction]:
        """What every candidate is predicted to take, cheapest first.

        Raises:
            InputError: there is no model yet.
        """
        links = self.links
        if links is None:
            raise InputError("explain: got a communicator without a cost model; call tuning.learn() on all its ranks")
        rows = predictions(collective, self._communicator.world_size, nbytes, links)
        return corrected(rows, self.factors, collective, nbytes)

    def ordinary_s(self, collective: str, nbytes: int) -> float:
        """What `collective` takes while nobody is late, as is predicted; remembered. Raises as `explain`."""
        key = collective, nbytes
        if key not in self._ordinary_s:
            world_size, links = self._communicator.world_size, self.links
            if world_size > MAX_PRICED_RANKS and links is not None:
                found = ordinary_by_law_s(world_size, nbytes, links)
            else:
                found = self.explain(collective, nbytes)[0].time_s
            if len(self._ordinary_s) >= MAX_SIZES:
                self._ordinary_s.clear()
            self._ordinary_s[key] = found
        return self._ordinary_s[key]

    def num_chunks(self, collective: str, algorithm: str, nbytes: int) -> int | None:
        """The chunk count for `algorithm` on buffers of `nbytes`; None: its own choice. The same on all ranks."""
        size = 1 << max(0, nbytes - 1).bit_length()
        key = collective, size, algorithm
        if key not in self._chunk_counts:
            line = find_algorithm(collective, algorithm)
            world_size, count = self._communicator.world_size, None
            links = self.links
            if (line.late or line.nodes) and links is not None and not line.refuses(world_size):
                count = (late_num_chunks if line.late else chunk_count)(line, world_size, size, links)
            self._chunk_counts[key] = count
        return self._chunk_counts[key]

    def _make(self, collective: str, nbytes: int, shared: bool) -> Choice:
        world_size = self._communicator.world_size
        named = override(collective, world_size)
        if named is not None:
            return Choice(named, None, "named by LANTERNE_ALGORITHM")
        if shared and goes_through_memory(collective, world_size, nbytes):
            return Choice(SHARED, None, "all ranks share memory")
        links = self.links
        leaf_sets = () if self.topology is None else self.topology.leaf_sets
        over_nodes = self.topology is not None and len(self.topology.nodes) > 1
        lines = candidates(collective, world_size, over_nodes, leaf_sets)
        if len(lines) == 1 or world_size == 1:
            return Choice(lines[0].name, None, "the only one")
        if links is None or world_size > MAX_PRICED_RANKS:
            first = next((line for line in lines if line.nodes), lines[0])
            count = None if links is None else chunk_count(first, world_size, nbytes, links)
            return Choice(first.name, count, "not measured" if links is None else "of so many ranks none is priced")
        predicted = predictions(collective, world_size, nbytes, links)
        rows = corrected(predicted, self.factors, collective, nbytes)
        if shared and goes_through_memory(collective, world_size, nbytes, predicted[0].time_s):
            return Choice(SHARED, None, "all ranks share memory, and nobody need be asked about")
        near = {row.algorithm: row for row in rows if row.time_s <= TIE * rows[0].time_s}
        if self.factors and nbytes > max(row.nbytes for row in self.factors):
            names = [line.name for line in lines]
        else:
            names = [row.algorithm for row in predicted]
        best = next(near[name] for name in names if name in near)
        reason = f"predicted to take {best.time_s * 1e6:.1f} us ({self.source} model)"
        return Choice(best.algorithm, best.num_chunks, reason)


def late_num_chunks(line: Algorithm, world_size: int, nbytes: int, links: Links) -> int | None:
    """The chunk count of the late-rank algorithm `line`, whose messages are posted ahead.

    Over nodes each chunk is several messages inside, which its ranks' cores start one by one. Elsewhere those of one
    late rank are long enough for halves.
    """
    if isinstance(links, Topology):
        return chunk_count(line, world_size, nbytes, links)
    least_nbytes = MIN_CHUNK_NBYTES if line.several else 2 * LEAST_HALF_NBYTES
    return chunk_count(line, world_size, nbytes, sustained(links, OF_A_CHUNK), least_nbytes)


def override(collective: str, world_size: int) -> str | None:
    """The algorithm that LANTERNE_ALGORITHM names for `collective`, or None.

    Raises:
        InputError: it names one that does not exist for any collective, or cannot be used with so many ranks.
    """
    for part in filter(None, os.environ.get("LANTERNE_ALGORITHM", "").split(",")):
        target, _, name = part.strip().rpartition("=")
        if not target and name in NAMES and (collective, name) not in ALGORITHMS:
            continue
        try:
            line = find_algorithm(target or collective, name)
        except InputError as error:
            raise InputError(f"LANTERNE_ALGORITHM: {error}") from None
        if line.collective != collective:
            continue
        if refusal := line.refuses(world_size):
            raise InputError(f"LANTERNE_ALGORITHM: got {name} for {collective}, which {refusal}")
        return name
    return None
