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
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lanterne.collectives.algorithms.catalogue import NATIVE, algorithms_for, find_algorithm, make_schedule
from lanterne.collectives.auto.pacing import credits, segment_nbytes, traffic_of
from lanterne.collectives.execute.arguments import Key
from lanterne.collectives.execute.communicator_base import CommunicatorBase
from lanterne.collectives.execute.compile_program import compile_program
from lanterne.collectives.execute.executor import Execution
from lanterne.collectives.execute.rank_program import RankProgram
from lanterne.collectives.execute.stream_execution import NativeExecution, StreamExecution
from lanterne.collectives.schedule.check_schedule import CheckedSchedule, check
from lanterne.collectives.schedule.contracts import CONTRACTS
from lanterne.collectives.schedule.ir import LateRank
from lanterne.errors import InputError
from lanterne.kernels.dtypes import Dtype
from lanterne.transport.base import Recv, Send, make_tag

# Lanes of a communicator after the control lane: first agreement, messages of the user, then one per signature: of
# calls that find out who is late their own, since they take theirs when the board has spoken, the others when they are
# started.
AGREEMENT_LANE, USER_LANES, PLAN_LANES, BOARD_LANES = 1, range(2, 34), range(64, 192), range(192, 256)
SIGNATURE_NBYTES = 256

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
) -> CheckedSchedule:
    return check(make_schedule(collective, algorithm, world_size, num_chunks, root, late_rank, joined=joined))


def checked_schedule(
    collective: str,
    algorithm: str,
    world_size: int,
    num_chunks: int | None = None,
    root: int | None = None,
    late_rank: LateRank = None,
    joined: int | None = None,
) -> CheckedSchedule:
    """The CheckedSchedule of a registered algorithm, made once per process.

    Raises:
        InputError: as registry.make_schedule.
    """
    with _checking:
        return _checked(collective, algorithm, world_size, num_chunks, root, late_rank, joined)


class AnyPlan(Protocol):
    """What a request needs of a plan: a CallPlan, or a captured one."""

    signature: str
    agreement: "SignatureExchange | None"

    def take(self, in_place: bool, /) -> AnyExecution:
        """An execution that is not in use."""
        ...

    def give_back(self, execution: AnyExecution, in_place: bool, /) -> None:
        """It is done."""


class CallPlan:
    """All that calls of one signature share on this rank.

    Attributes:
        signature: text, equal on all ranks.
        agreement: the SignatureExchange on it while it is under way, else None.
    """

    def __init__(
        self, group: CommunicatorBase, key: Key, dtype: Dtype, lane: int, checked: CheckedSchedule | None
    ) -> None:
        self.signature: str = str(key)
        self._key = key
        self._dtype = dtype
        self._checked = checked
        self._group = group
        self._tag = make_tag(group.communicator_id, lane)
        # Device arrays; over a channel, all is queued on streams.
        self._side = group.device_side() if key.memory else None
        self._channel = None if self._side is None else self._side.channel
        # By in_place: the RankProgram, and the Executions of it that are not in use.
        self._programs: dict[bool, RankProgram] = {}
        self._free: dict[bool, list[AnyExecution]] = {False: [], True: []}
        self._agreed = group.world_size == 1
        self.agreement: SignatureExchange | None = None

    def agree(self) -> None:
        """Start the agreement on the signature, unless that was done."""
        if not self._agreed:
            self._agreed = True
            self.agreement = SignatureExchange(self._group, self.signature)

    def take(self, in_place: bool) -> AnyExecution:
        """An Execution of this plan that is not in use."""
        free = self._free[in_place]
        return free.pop() if free else self.make(in_place)

    def give_back(self, execution: AnyExecution, in_place: bool) -> None:
        """The Execution is done: the next call may use it."""
        execution.unbind()
        self._free[in_place].append(execution)

    def make(self, in_place: bool) -> AnyExecution:
        """A new Execution."""
        key, dtype, group, side = self._key, self._dtype, self._group, self._side
        if self._checked is None:
            assert side is not None and self._channel is not None, "over MPI the library's own have no plan"
            return NativeExecution(side, self._channel, key)
        if in_place not in self._programs:
            schedule, model = self._checked.schedule, group.tuning.model
            pieces = schedule.num_chunks // CONTRACTS[schedule.collective].parts(schedule.world_size)
            chunk_nbytes = -(-key.part_count // pieces) * dtype.nbytes
            chunked = find_algorithm(schedule.collective, schedule.algorithm).chunked
            flow = traffic_of(schedule, chunked=chunked)
            most_nbytes = key.segment_nbytes or segment_nbytes(model, chunk_nbytes, flow)
            granted = credits(model, group.transport, min(most_nbytes, chunk_nbytes), flow)
            alignment_nbytes = group.transport.capabilities.device_alignment_nbytes if self._channel else 0
            self._programs[in_place] = compile_program(
                self._checked,
                group.rank,
                key.part_count,
                dtype.nbytes,
                segment_nbytes=most_nbytes,
                credits=None if self._channel else key.credits or granted,
                in_place=in_place,
                mean=key.op == "mean",
                align=max(1, alignment_nbytes // dtype.nbytes),
            )
        program = self._programs[in_place]
        if side is not None and self._channel is not None:
            return StreamExecution(program, side, self._channel, key.op, dtype, self.signature)
        transport = group.transport if side is None else side.transport
        return Execution(program, transport, group.scratch, group.ranks, self._tag, key.op, dtype, side)


class Plans:
    """The plans of one communicator: least recently used out first, alike on all ranks.

    Args:
        group: the communicator.
        lanes: one for each plan that is kept.
    """

    def __init__(self, group: CommunicatorBase, lanes: Sequence[int] = PLAN_LANES) -> None:
        self._group = group
        self._plans: OrderedDict[Key, CallPlan] = OrderedDict()
        self._lanes = list(reversed(lanes))
        self._lane_of: dict[Key, int] = {}

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
        checked = None
        if key.algorithm != NATIVE:
            checked = checked_schedule(
                key.collective,
                key.algorithm,
                self._group.world_size,
                key.num_chunks,
                key.root,
                key.late_rank,
                key.joined,
            )
        if not self._lanes:
            oldest, _ = self._plans.popitem(last=False)
            self._lanes.append(self._lane_of.pop(oldest))
        lane = self._lane_of[key] = self._lanes.pop()
        plan = self._plans[key] = CallPlan(self._group, key, dtype, lane, checked)
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
