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

import numpy as np

from lanterne.collectives.algorithms.registry import NATIVE, algorithms_for, find_algorithm, make_schedule
from lanterne.collectives.auto.pacing import credits, segment_nbytes, traffic_of
from lanterne.collectives.execute.compile import compile_program
from lanterne.collectives.execute.executor import Execution
from lanterne.collectives.execute.stream_execution import NativeExecution, StreamExecution
from lanterne.collectives.schedule.check import check
from lanterne.collectives.schedule.contracts import CONTRACTS
from lanterne.errors import InputError
from lanterne.transport.base import Recv, Send, make_tag

# Lanes of a communicator: control, first agreement, messages of the user, then one per signature: of calls that find
# out who is late their own, since they take theirs when the board has spoken, the others when they are started.
CONTROL_LANE, AGREEMENT_LANE, USER_LANES, PLAN_LANES, BOARD_LANES = 0, 1, range(2, 34), range(64, 192), range(192, 256)
SIGNATURE_NBYTES = 256

_checking = threading.Lock()


@functools.lru_cache(256)
def _checked(collective, algorithm, world_size, num_chunks, root, late_rank, joined):
    return check(make_schedule(collective, algorithm, world_size, num_chunks, root, late_rank, joined=joined))


def checked_schedule(collective, algorithm, world_size, num_chunks=None, root=None, late_rank=None, joined=None):
    """The CheckedSchedule of a registered algorithm, made once per process.

    Raises:
        InputError: as registry.make_schedule.
    """
    with _checking:
        return _checked(collective, algorithm, world_size, num_chunks, root, late_rank, joined)


class CallPlan:
    """All that calls of one signature share on this rank.

    Attributes:
        signature: text, equal on all ranks.
        agreement: the SignatureExchange on it while it is under way, else None.
    """

    def __init__(self, group, key, dtype, lane, checked):
        self.signature, self._key, self._dtype, self._checked = str(key), key, dtype, checked
        self._group, self._tag = group, make_tag(group.communicator_id, lane)
        # Device arrays; over a channel, all is queued on streams.
        self._side = group.device_side() if key.memory else None
        self._channel = None if self._side is None else self._side.channel
        # By in_place: the Program, and the Executions of it that are not in use.
        self._programs, self._free = {}, {False: [], True: []}
        self._agreed, self.agreement = group.world_size == 1, None

    def agree(self):
        """Start the agreement on the signature, unless that was done."""
        if not self._agreed:
            self._agreed, self.agreement = True, SignatureExchange(self._group, self.signature)

    def take(self, in_place):
        """An Execution of this plan that is not in use."""
        free = self._free[in_place]
        return free.pop() if free else self.make(in_place)

    def give_back(self, execution, in_place):
        """The Execution is done: the next call may use it."""
        execution.unbind()
        self._free[in_place].append(execution)

    def make(self, in_place):
        """A new Execution."""
        key, dtype, group, side = self._key, self._dtype, self._group, self._side
        if key.algorithm == NATIVE:
            return NativeExecution(side, key)
        if in_place not in self._programs:
            schedule, model = self._checked.schedule, group.tuning.model
            pieces = schedule.num_chunks // CONTRACTS[schedule.collective].parts(schedule.world_size)
            chunk_nbytes = -(-key.part_count // pieces) * dtype.nbytes
            flow = traffic_of(schedule, find_algorithm(schedule.collective, schedule.algorithm).chunked)
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
        if self._channel is not None:
            return StreamExecution(program, side, key.op, dtype, self.signature)
        transport = group.transport if side is None else side.transport
        return Execution(program, transport, group.scratch, group.ranks, self._tag, key.op, dtype, side)


class Plans:
    """The plans of one communicator: least recently used out first, alike on all ranks.

    Args:
        group: the Communicator: transport, scratch, ranks, rank, communicator_id.
        lanes: one for each plan that is kept.
    """

    def __init__(self, group, lanes=PLAN_LANES):
        self._group = group
        self._plans = OrderedDict()
        self._lanes = list(reversed(lanes))
        self._lane_of = {}

    def find(self, key):
        """The CallPlan of `key` (arguments.Key), or None."""
        plan = self._plans.get(key)
        if plan is not None:
            self._plans.move_to_end(key)
        return plan

    def add(self, key, dtype):
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

    def __init__(self, group, signature):
        self._rank, self._signature = group.rank, signature
        n, transport = group.world_size, group.transport
        self._left = (group.rank - 1) % n
        mine, self._theirs = padded(signature), np.zeros(SIGNATURE_NBYTES, np.uint8)
        tag = make_tag(group.communicator_id, AGREEMENT_LANE)
        receive = Recv(transport.register(self._theirs), 0, SIGNATURE_NBYTES, group.ranks[self._left], tag)
        send = Send(transport.register(mine), 0, SIGNATURE_NBYTES, group.ranks[(group.rank + 1) % n], tag)
        self._request = transport.post((receive, send))

    def test(self):
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

    def pending_peers(self):
        return self._request.pending_peers()


def padded(signature):
    """`signature` as SIGNATURE_NBYTES bytes: a uint8 array."""
    encoded = signature.encode()
    if len(encoded) > SIGNATURE_NBYTES:
        raise InputError(f"signature: got {len(encoded)} bytes, expected at most {SIGNATURE_NBYTES}")
    padded = np.zeros(SIGNATURE_NBYTES, np.uint8)
    padded[: len(encoded)] = np.frombuffer(encoded, np.uint8)
    return padded


def offered_algorithms(collective, world_size):
    """Names of the registered algorithms of `collective` that can run on `world_size` ranks."""
    return tuple(line.name for line in algorithms_for(collective) if not line.refuses(world_size))
