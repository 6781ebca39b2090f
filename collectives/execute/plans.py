"""Per communicator: which program a call runs. Made once for every signature, then found in a bounded cache.

The first call of a signature exchanges a digest of it with the neighbours in rank order, so that ranks which disagree
on op, dtype, count, root or algorithm find out before data moves. From then on the signature has its own lane, a number
that all ranks assign alike since all make the same calls: messages of different signatures never match, and a rank that
waits in vain finds out why over the control lane (control.py). So the check costs nothing but at the first call of its
kind.
"""

import functools
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lanterne.collectives.algorithms.catalogue import (
    NATIVE,
    algorithms_for,
    find_algorithm,
    given_line,
    make_schedule,
)
from lanterne.collectives.algorithms.hierarchical.compose import Nodes, Roles, roles_with
from lanterne.collectives.auto.pacing import (
    CROSSINGS,
    PIECES,
    STREAM_SEGMENTS,
    credits,
    queued_nbytes,
    segment_nbytes,
    traffic_of,
)
from lanterne.collectives.auto.predict import Links, equal_ports
from lanterne.collectives.execute.arguments import Form, Key
from lanterne.collectives.execute.communicator_base import CommunicatorBase
from lanterne.collectives.execute.compile_program import compile_program
from lanterne.collectives.execute.executor import Execution
from lanterne.collectives.execute.growing import GrowingExecution, GrowingRounds
from lanterne.collectives.execute.rank_program import RankProgram
from lanterne.collectives.execute.stream_execution import NativeExecution, StreamExecution
from lanterne.collectives.message_lanes import AGREEMENT_LANE, PLAN_LANES
from lanterne.collectives.schedule.check_own import OwnSchedule
from lanterne.collectives.schedule.check_schedule import CheckedSchedule, check
from lanterne.collectives.schedule.chunk_layout import is_direct, uneven_parts
from lanterne.collectives.schedule.contracts import CONTRACTS
from lanterne.collectives.schedule.ir import LateRank
from lanterne.errors import InputError
from lanterne.kernels.dtypes import Dtype
from lanterne.transport.base import Recv, Send, make_tag

SIGNATURE_NBYTES = 256
# Of more ranks each makes and checks its own part alone, where the algorithm can: of all it would take a gigabyte.
MAX_CHECKED_RANKS = 64
# Of late-rank algorithms, programs that are kept: of each choice there are three.
MAX_PROGRAMS = 96
# Forms of one plan that are kept: of an all-to-all whose counts change with every call each is used once.
MAX_FORMS = 16

_checking = threading.Lock()

# What runs a call: the host's executor, or what queues it on streams.
AnyExecution: TypeAlias = Execution | StreamExecution | NativeExecution


@functools.lru_cache(256)
def _checked(
    collective: str,
    algorithm: str,
    world_size: int,
    num_chunks: int | None,
    root: int | None,
    late_rank: LateRank,
    joined: int | None,
    nodes: Nodes | None,
) -> CheckedSchedule:
    made = make_schedule(collective, algorithm, world_size, num_chunks, root, late_rank, joined=joined, nodes=nodes)
    return check(made)


def checked_schedule(
    collective: str,
    algorithm: str,
    world_size: int,
    num_chunks: int | None = None,
    root: int | None = None,
    late_rank: LateRank = None,
    joined: int | None = None,
    nodes: Nodes | None = None,
) -> CheckedSchedule:
    """The CheckedSchedule of a registered algorithm, made once per process.

    Raises:
        InputError: as catalogue.make_schedule.
    """
    with _checking:
        return _checked(collective, algorithm, world_size, num_chunks, root, late_rank, joined, nodes)


def checked_of(key: Key, nodes: Nodes) -> CheckedSchedule:
    """The CheckedSchedule that calls of `key` run: with one late rank, in its Roles.

    Raises:
        InputError: as catalogue.make_schedule.
    """
    if key.schedule is not None:
        return key.schedule
    late, known = _late_and_nodes(key, nodes)
    world_size = sum(map(len, nodes))
    return checked_schedule(
        key.collective, key.algorithm, world_size, key.num_chunks, key.root, late, key.joined, known
    )


def _late_and_nodes(key: Key, nodes: Nodes) -> tuple[LateRank, Nodes | None]:
    """The late ranks and nodes that the schedule of `key` is made with: in Roles, and no nodes where it knows none."""
    world_size, late = sum(map(len, nodes)), key.late_rank
    if is_in_roles(key, world_size):
        assert isinstance(late, int), "it is one rank"
        late, nodes = world_size - 1, roles_with(nodes, late).nodes
    return late, nodes if find_algorithm(key.collective, key.algorithm).nodes else None


def is_in_roles(key: Key, world_size: int) -> bool:
    """Whether the schedule of `key` is made in Roles: with the one late rank in the last of them."""
    late = key.late_rank
    if not isinstance(late, int) or not 0 <= late < world_size:
        return False
    line = find_algorithm(key.collective, key.algorithm)
    # Slow nodes stay what they are, whoever is late.
    return line.late and not line.leaves


def part_of(key: Key, nodes: Nodes, rank: int) -> CheckedSchedule | OwnSchedule:
    """What `rank` compiles for calls of `key`, where with one late rank it has that role: all, or its part of many.

    Raises:
        InputError: as catalogue.make_schedule.
    """
    world_size = sum(map(len, nodes))
    few = key.schedule is not None or world_size <= MAX_CHECKED_RANKS
    if few or not find_algorithm(key.collective, key.algorithm).own:
        return checked_of(key, nodes)
    late, known = _late_and_nodes(key, nodes)
    return _own_part(key.collective, key.algorithm, world_size, key.num_chunks, key.root, late, rank, known)


@functools.lru_cache(4)
def _own_part(
    collective: str,
    algorithm: str,
    world_size: int,
    num_chunks: int | None,
    root: int | None,
    late_rank: LateRank,
    rank: int,
    nodes: Nodes | None,
) -> OwnSchedule:
    made = make_schedule(collective, algorithm, world_size, num_chunks, root, late_rank, nodes=nodes, only=rank)
    return OwnSchedule(made, rank)


class RankPrograms:
    """The RankPrograms of this rank.

    A schedule with a late rank is in roles: the others in order, then the late rank (schedule/ir.late_builder); of
    nodes, those of the late rank last (compose.roles_with). So whoever is late, this rank has one of three programs,
    of five over nodes of one size, and only the numbers of its peers differ; they are kept, and a call in which another
    rank is late than ever before waits for no compiler.
    """

    def __init__(self, group: CommunicatorBase) -> None:
        self._group = group
        # By key, role and place, the links, which messages are cut by, and nodes: least recently used first.
        self._kept: OrderedDict[tuple[Key, int, bool, Links | None, Nodes], RankProgram] = OrderedDict()

    def find(self, key: Key, dtype: Dtype, form: Form) -> RankProgram:
        """The RankProgram of calls of `key`."""
        n, rank, late = self._group.world_size, self._group.rank, key.late_rank
        in_place, own = form if isinstance(form, tuple) else (form, None)
        if not isinstance(late, int) or not is_in_roles(key, n):
            return self._compile(key, dtype, in_place, rank, self._nodes, own)
        rank_of, nodes = self._roles(key, late)
        program = self._role(key._replace(late_rank=n - 1), dtype, in_place, rank_of.index(rank), nodes)
        return program if rank_of == tuple(range(n)) else program.with_peers(rank_of)

    def role_of(self, key: Key, late: int) -> tuple[int, Nodes]:
        """The role of this rank where `late` is late, and the nodes it is of: calls alike in these run one program."""
        rank_of, nodes = self._roles(key, late)
        return rank_of.index(self._group.rank), nodes

    @property
    def _nodes(self) -> Nodes:
        return self._group.nodes

    def _roles(self, key: Key, late: int) -> Roles:
        over_nodes = find_algorithm(key.collective, key.algorithm).nodes
        return roles_with(self._nodes if over_nodes else (tuple(range(self._group.world_size)),), late)

    def _role(self, key: Key, dtype: Dtype, in_place: bool, role: int, nodes: Nodes) -> RankProgram:
        kept = self._kept
        place = key, role, in_place, self._group.tuning.links, nodes
        if place not in kept:
            kept[place] = self._compile(key, dtype, in_place, role, nodes)
            if len(kept) > MAX_PROGRAMS:
                kept.popitem(last=False)
        kept.move_to_end(place)
        return kept[place]

    def _compile(
        self, key: Key, dtype: Dtype, in_place: bool, rank: int, nodes: Nodes, own: tuple[int, ...] | None = None
    ) -> RankProgram:
        """The RankProgram of `rank`, of `nodes`."""
        group = self._group
        checked = part_of(key, nodes, rank)
        schedule = checked.schedule
        line = find_algorithm(schedule.collective, schedule.algorithm) if key.schedule is None else given_line(schedule)
        tuning = group.tuning
        model, sharers, own_sharers = tuning.model, 1, 1
        if line.nodes:
            model, sharers, own_sharers = tuning.model_over_nodes, tuning.nic_sharers, tuning.own_nic_sharers
        pieces = schedule.num_chunks // CONTRACTS[schedule.collective].parts(schedule.world_size)
        # Of parts that others do not know the size of nothing may depend on it: both ends of a message cut alike.
        largest = max(key.counts, default=0) if key.counts is not None else key.part_count
        chunk_nbytes = -(-largest // pieces) * dtype.nbytes
        alike = not line.nodes or len(set(map(len, nodes))) == 1
        stream = line.stream and alike if isinstance(checked, OwnSchedule) else None
        flow = traffic_of(schedule, line.chunked, nodes if line.nodes else None, stream)
        streams = key.memory is not None and group.device_side().channel is not None
        most_nbytes = key.segment_nbytes
        if most_nbytes is None and streams:
            most_nbytes = queued_nbytes(schedule, is_whole=isinstance(checked, CheckedSchedule))
        elif most_nbytes is None:
            most_nbytes = segment_nbytes(model, chunk_nbytes, flow, sharers)
        granted = credits(model, group.transport, min(most_nbytes, chunk_nbytes), flow, own_sharers)
        alignment_nbytes = group.transport.capabilities.device_alignment_nbytes if streams else 0
        return compile_program(
            checked,
            rank,
            key.part_count if key.counts is None else uneven_parts(key.collective, rank, own or key.counts),
            dtype.nbytes,
            segment_nbytes=most_nbytes,
            credits=None if streams else key.credits or granted,
            in_place=in_place,
            mean=key.op == "mean",
            align=max(1, alignment_nbytes // dtype.nbytes),
            nodes=nodes if line.nodes and len(nodes) > 1 else (),
            in_turn=line.in_turn,
        )

    def growing(
        self, key: Key, dtype: Dtype, in_place: bool, num_chunks: int, ahead: int, tag: int
    ) -> GrowingExecution:
        """Return an execution of an all-reduce of `key` to which ranks arrive while it runs.

        Args:
            num_chunks: of each rail.
        """
        group = self._group
        tuning, links = group.tuning, group.tuning.links
        nodes = None if links is None else equal_ports(links, group.world_size)
        assert nodes is not None, "any_option is of equal ports"
        model, sharers, flow = tuning.model, 1, PIECES
        if len(nodes[0]) > 1:
            model, sharers, flow = tuning.model_over_nodes, tuning.nic_sharers, CROSSINGS
        chunk_nbytes = -(-key.part_count // (num_chunks * len(nodes[0]))) * dtype.nbytes
        # No more parts than a stream has: with twice as many 8 hosts on 2 cores took 1.09 of the bound, not 1.04.
        most_nbytes = max(segment_nbytes(model, chunk_nbytes, flow, sharers), -(-chunk_nbytes // STREAM_SEGMENTS))
        most_nbytes = key.segment_nbytes or most_nbytes
        granted = credits(model, group.transport, min(most_nbytes, chunk_nbytes), flow, sharers)
        rounds = GrowingRounds(
            group.rank,
            nodes,
            num_chunks,
            key.part_count,
            dtype.nbytes,
            segment_nbytes=most_nbytes,
            credits=key.credits or granted,
            in_place=in_place,
            mean=key.op == "mean",
        )
        return GrowingExecution(rounds, group.transport, group.scratch, group.ranks, tag, key.op, dtype, ahead)


class AnyPlan(Protocol):
    """What a request needs of a plan: a CallPlan, a captured one, or a call of MPI's, which is its own."""

    signature: str
    agreement: "SignatureExchange | None"

    def give_back(self, execution: Any, form: Form, /) -> None:
        """It is done."""


class CallPlan:
    """All that calls of one signature share on this rank.

    Attributes:
        signature: text, equal on all ranks.
        agreed: whether the agreement on it has begun.
        agreement: the SignatureExchange on it while it is under way, else None.
    """

    def __init__(self, group: CommunicatorBase, key: Key, dtype: Dtype, lane: int | None, made: "RankPrograms") -> None:
        self.signature: str = str(key)
        self._key = key
        self._dtype = dtype
        self._made = made
        self._group = group
        # Where each call has a lane of its own, that of the agreement stands here.
        self._tag = make_tag(group.communicator_id, AGREEMENT_LANE if lane is None else lane)
        # Device arrays; over a channel, all is queued on streams.
        self._side = group.device_side() if key.memory else None
        self._channel = None if self._side is None else self._side.channel
        # By form: the RankProgram, and the Executions of it that are not in use.
        self._programs: dict[Form, RankProgram] = {}
        self._free: dict[Form, list[AnyExecution]] = {False: [], True: []}
        self.agreed: bool = group.world_size == 1
        self.agreement: SignatureExchange | None = None

    def agree(self) -> None:
        """Start the agreement on the signature, unless that was done."""
        if not self.agreed:
            self.agreed = True
            self.agreement = SignatureExchange(self._group, self.signature)

    def take(self, form: Form, lane: int | None = None) -> AnyExecution:
        """An execution that is not in use, with messages of `lane` (None: the plan's)."""
        free = self._free.get(form)
        execution = free.pop() if free else self.make(form)
        if lane is not None and isinstance(execution, Execution):
            execution.use_tag(make_tag(self._group.communicator_id, lane))
        return execution

    def give_back(self, execution: AnyExecution, form: Form) -> None:
        """The Execution is done: the next call may use it."""
        execution.unbind()
        self._free.setdefault(form, []).append(execution)

    def make(self, form: Form) -> AnyExecution:
        """A new Execution."""
        key, dtype, group, side = self._key, self._dtype, self._group, self._side
        if key.algorithm == NATIVE:
            assert side is not None and self._channel is not None, "over MPI the library's own have no plan"
            return NativeExecution(side, self._channel, key)
        if form not in self._programs:
            if len(self._programs) >= MAX_FORMS:
                oldest = next(iter(self._programs))
                del self._programs[oldest]
                self._free.pop(oldest, None)
            self._programs[form] = self._made.find(key, dtype, form)
        program = self._programs[form]
        if side is not None and self._channel is not None:
            return StreamExecution(program, side, self._channel, key.op, dtype, self.signature)
        transport = group.transport if side is None else side.transport
        return Execution(program, transport, group.scratch, group.ranks, self._tag, key.op, dtype, side)


class Plans:
    """The plans of one communicator: least recently used out first, alike on all ranks.

    Args:
        group: the communicator.
        lanes: one for each plan that is kept; None where each call has its own.

    Attributes: `programs`, the RankPrograms that they run.
    """

    def __init__(self, group: CommunicatorBase, lanes: Sequence[int | None] = PLAN_LANES) -> None:
        self._group = group
        self._plans: OrderedDict[Key, CallPlan] = OrderedDict()
        self._lanes = list(reversed(lanes))
        self._lane_of: dict[Key, int | None] = {}
        self.programs: RankPrograms = RankPrograms(group)

    def find(self, key: Key) -> CallPlan | None:
        """The CallPlan of `key` (arguments.Key), or None."""
        plan = self._plans.get(key)
        if plan is not None:
            self._plans.move_to_end(key)
        return plan

    def add(self, key: Key, dtype: Dtype) -> CallPlan:
        """Make the CallPlan of a new `key`, in the place of the least recently used one if there is no room.

        Raises:
            InputError: no such algorithm, or not for this.
        """
        if key.algorithm != NATIVE:
            schedule = part_of(key, self._group.nodes, self._group.rank).schedule
            if key.counts == () and not is_direct(schedule):
                raise InputError(
                    f"algorithm: got {key.algorithm} for {key.collective} with counts, expected one that sends every "
                    "part straight to its owner: nobody else knows its size"
                )
        if not self._lanes:
            oldest, _ = self._plans.popitem(last=False)
            self._lanes.append(self._lane_of.pop(oldest))
        lane = self._lane_of[key] = self._lanes.pop()
        if key.root is not None:
            self._group.engine.attend(self._group.tuning)
        plan = self._plans[key] = CallPlan(self._group, key, dtype, lane, self.programs)
        return plan


class SignatureExchange:
    """Exchanges `signature` with the neighbours in rank order; somewhere in the ring two that differ are neighbours."""

    def __init__(self, group: CommunicatorBase, signature: str) -> None:
        self._rank = group.rank
        self._signature = signature
        n, transport = group.world_size, group.transport
        self._left = (group.rank - 1) % n
        mine = padded(signature)
        self._theirs = np.zeros(SIGNATURE_NBYTES, np.uint8)
        tag = make_tag(group.communicator_id, AGREEMENT_LANE)
        receive = Recv(transport.register(self._theirs), 0, SIGNATURE_NBYTES, group.ranks[self._left], tag)
        send = Send(transport.register(mine), 0, SIGNATURE_NBYTES, group.ranks[(group.rank + 1) % n], tag)
        self._request = transport.post((receive, send))

    def test(self) -> bool:
        """True once the left neighbour is known to have the same signature.

        Raises:
            InputError: it has another.
        """
        if not self._request.test():
            return False
        if not np.array_equal(self._theirs, padded(self._signature)):
            theirs = self._theirs.tobytes().rstrip(b"\0").decode(errors="replace")
            (first, one), (second, other) = sorted([(self._rank, self._signature), (self._left, theirs)])
            raise InputError(f"rank {first} got {one}, rank {second} got {other}, expected the same on every rank")
        return True

    def pending_peers(self) -> Sequence[int]:
        return self._request.pending_peers()


def padded(signature: str) -> NDArray[np.uint8]:
    """`signature` as SIGNATURE_NBYTES bytes: a uint8 array."""
    encoded = signature.encode()
    if len(encoded) > SIGNATURE_NBYTES:
        raise InputError(f"signature: got {len(encoded)} bytes, expected at most {SIGNATURE_NBYTES}")
    padded = np.zeros(SIGNATURE_NBYTES, np.uint8)
    padded[: len(encoded)] = np.frombuffer(encoded, np.uint8)
    return padded


def offered_algorithms(collective: str, world_size: int) -> tuple[str, ...]:
    """Names of the registered algorithms of `collective` that can run on `world_size` ranks."""
    return tuple(line.name for line in algorithms_for(collective) if not line.refuses(world_size))
