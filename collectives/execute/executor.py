"""Runs a RankProgram over a transport: each action as soon as what it waits for has happened; nothing blocks.

All that can be made beforehand is: operations, tags, kernels, scratch. A call only points the regions at the user's
arrays. Reductions run on the host, through kernels.prepare's functions of addresses, which release the GIL; on device
arrays (`side`) they are kernels on a stream, and complete when that has come to them.
"""

import ctypes
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from lanterne.collectives.execute.rank_program import IN, OUT, SCRATCH, Action, Fold, Message, Move, RankProgram
from lanterne.collectives.execute.scratch import Scratch
from lanterne.errors import TransportError
from lanterne.kernels.arrays import Event
from lanterne.kernels.cpu.jit import divide_function
from lanterne.kernels.dtypes import Dtype
from lanterne.kernels.reduce import prepare
from lanterne.transport.base import Recv, Region, Request, Send, Transport

if TYPE_CHECKING:
    from lanterne.collectives.execute.device import DeviceSide, Entry

# A kernel, of addresses.
Kernel: TypeAlias = Callable[..., Any]
# What is under way, and the action that ends with it.
UnderWay: TypeAlias = deque[tuple[Request, int]]

_EMPTY = np.empty(0, np.uint8)
# The last messages of a call leave its ports idle for some of the time, since each waits for one before it: so many of
# all may be left when the next call begins, of calls with a phase "join" and of others. (8 hosts, in virtual time, as
# tests/collectives/late/test_late_times.py has it: eight joins of 1 MiB, one late by 1.1 of all: an eighth 1.22, a
# quarter 1.17. Calls of 4 MiB with one late by 0.5 of all, whatever they do: 0 1.54, an eighth 1.47, a quarter 1.42, a
# half 1.60.)
JOIN_ENDING = 1 / 4
ENDING = 1 / 8


def check_capabilities(program: RankProgram, transport: Transport) -> None:
    """Raise if `transport` cannot carry `program`.

    Raises:
        TransportError: it has no tags, or host memory or a message of this size is beyond it.
    """
    capabilities = transport.capabilities
    if not capabilities.tags:
        raise TransportError(f"{transport.name}: has no tags, which signatures are told apart by; use mpi or ucx")
    if not capabilities.host_memory:
        raise TransportError(
            f"{transport.name}: cannot send host memory; use device arrays, or the mpi or ucx transport"
        )
    largest = max((action.nbytes for action in program.actions if type(action) is Message), default=0)
    if largest > capabilities.max_message_nbytes:
        raise TransportError(
            f"{transport.name}: got a message of {largest} bytes, expected at most {capabilities.max_message_nbytes}"
        )


class _Memory:
    """What the actions of a program work on, the arrays of a call and scratch, and the work itself.

    Attributes: `regions`: of IN, OUT and SCRATCH; operations name them, and a call points them at its arrays.
    """

    def __init__(self, transport: Transport, scratch: Scratch, num_ranks: int, side: "DeviceSide | None") -> None:
        self.regions = [transport.register(_EMPTY) for _ in range(3)]
        self.entry: Entry | None = None
        self._scratch = scratch
        self._side = side
        self._lent: Region | None = None
        self._bases = [0, 0, 0]
        self._divisor = float(num_ranks)

    def kernels(self, op: str | None, dtype: Dtype, fold: Fold) -> tuple[Kernel, Kernel | None]:
        """(kernel, division or None) of a Fold: functions of addresses."""
        assert op is not None, "only a reduction folds"
        if self._side is None:
            return prepare(op, dtype, len(fold.inputs)), divide_function(dtype) if fold.divides else None
        runtime, stream = self._side.runtime, self._side.streams[1]
        kernel = partial(runtime.prepare_fold(op, dtype, len(fold.inputs)), stream=stream)
        return kernel, partial(runtime.prepare_divide(dtype), stream=stream) if fold.divides else None

    def bind(self, in_array: Any, out_array: Any, entry: "Entry | None") -> None:
        """Take the arrays of a call."""
        self.entry = entry
        for buffer, array in ((IN, in_array), (OUT, out_array)):
            if array is not None:
                region = self.regions[buffer]
                region.point(array)
                self._bases[buffer] = region.address if self._side is None else self._side.address_of(region)

    def take_scratch(self, nbytes: int) -> None:
        """Have scratch of `nbytes` until `unbind`, or, on a device, until the next call."""
        if self._side is None:
            region = self._lent = self._scratch.lend(nbytes)
        else:
            region = self._side.region(nbytes)
        target = self.regions[SCRATCH]
        target.array = region.array
        target.buffer = region.buffer
        target.address = region.address
        target.nbytes = region.nbytes
        target.device = region.device
        target.native = region.native
        self._bases[SCRATCH] = region.address if self._side is None else self._side.address_of(region)

    def unbind(self) -> None:
        """Let go of the arrays and of scratch."""
        self.entry = None
        if self._lent is not None:
            self._scratch.give_back(self._lent)
            self._lent = None
        for region in self.regions[:SCRATCH]:
            region.array = region.buffer = region.native = None

    def fold(self, kernel: Kernel, divide: Kernel | None, fold: Fold) -> None:
        """Do a Fold, and the division that ends it."""
        bases = self._bases
        out = bases[fold.out.buffer] + fold.out.offset
        kernel(fold.num_elements, out, *[bases[buffer] + offset for buffer, offset in fold.inputs])
        if divide is not None:
            divide(fold.num_elements, out, out, self._divisor)

    def move(self, move: Move) -> None:
        """Do a Move."""
        bases = self._bases
        target, source = move.target, move.source
        to, of = bases[target.buffer] + target.offset, bases[source.buffer] + source.offset
        if self._side is None:
            ctypes.memmove(to, of, move.nbytes)
        else:
            self._side.runtime.copy(to, of, move.nbytes, self._side.streams[1])


class Execution:
    """One call of a program, again and again but never twice at once.

    Args:
        transport: carries its messages.
        scratch: the communicator's.
        ranks: transport rank of every rank of the program.
        tag: of all its messages (transport.make_tag).
        op, dtype: of its folds. Compiled here, before anything is posted.
        side: where arrays are on a device; its transport takes them.

    Attributes:
        remaining: actions not yet complete.
        completion: None; of what is queued on streams only (stream_execution.py).

    Cost: some 2 us per action besides the transport and the reduction.
    """

    completion: Request | None = None

    def __init__(
        self,
        program: RankProgram,
        transport: Transport,
        scratch: Scratch,
        ranks: Sequence[int],
        tag: int,
        op: str | None,
        dtype: Dtype,
        side: "DeviceSide | None" = None,
    ) -> None:
        check_capabilities(program, transport)
        self._side = side
        self.program = program
        self.transport = transport
        self._tag = tag
        self._memory = _Memory(transport, scratch, len(ranks), side)
        self._ranks, self._op, self._dtype = ranks, op, dtype
        lanes = sorted({(action.sends, action.peer) for action in program.actions if type(action) is Message})
        self._lanes: dict[tuple[bool, int], UnderWay] = {lane: deque() for lane in lanes}
        # Receives first: what waits for them waits longest.
        self._queues = list(self._lanes.values())
        # Of a message, (the operation, its lane's queue); else (None, what to call, its arguments...).
        self._steps: list[tuple[Any, ...]] = [self._step(action) for action in program.actions]
        self._successors: Sequence[Sequence[int]] = program.successors
        self._next_post: Sequence[int] = program.next_post
        ready = [index for index, waits in enumerate(program.waits) if not waits]
        self._first = sorted(ready, key=lambda index: first_order(program.actions[index]))
        # Copies that nothing waits for are done when there is nothing else to do.
        self._leisurely = frozenset(
            index
            for index, action in enumerate(program.actions)
            if type(action) is Move and not program.successors[index]
        )
        # Of each lane, the first message of phase "join"; the others follow it.
        first: dict[tuple[bool, int], int] = {}
        for index in range(program.join_start, len(program.actions)):
            action = program.actions[index]
            if type(action) is Message:
                first.setdefault((action.sends, action.peer), index)
        self._joining = sorted(first.values(), key=lambda index: first_order(program.actions[index]))
        # Of phase "join", and of all phases, messages that are not posted.
        self._joining_messages = sum(type(action) is Message for action in program.actions[program.join_start :])
        self._messages = sum(type(action) is Message for action in program.actions)
        self._ending = (JOIN_ENDING if self._joining else ENDING) * self._messages
        self._unposted = 0
        self._held = False
        self._idle: deque[int] = deque()
        # Work on the side's stream that is not complete: the event of its end, and the action.
        self._launched: deque[tuple[Event, int]] = deque()
        self.remaining: int = 0

    def _step(self, action: Action) -> tuple[Any, ...]:
        """Return what runs `action`, an element of _steps."""
        memory = self._memory
        if type(action) is Message:
            verb, place = Send if action.sends else Recv, action.place
            operation = verb(
                memory.regions[place.buffer], place.offset, action.nbytes, self._ranks[action.peer], self._tag
            )
            return (operation,), self._lanes[action.sends, action.peer]
        if type(action) is Fold:
            return None, memory.fold, *memory.kernels(self._op, self._dtype, action), action
        return None, memory.move, action

    def bind(self, in_array: Any, out_array: Any, entry: "Entry | None" = None) -> None:
        """Take the user's arrays: C-contiguous, of in_count and out_count elements; None where the program has none.

        Args:
            entry: of a call with device arrays.
        """
        self._memory.bind(in_array, out_array, entry)

    def use_tag(self, tag: int) -> None:
        """All messages from now on have `tag`. Cost: 1 us a message, where it is another one."""
        if tag != self._tag:
            self._tag = tag
            for index, step in enumerate(self._steps):
                if step[0] is not None:
                    self._steps[index] = (step[0][0]._replace(tag=tag),), step[1]

    def unbind(self) -> None:
        """Let go of the user's arrays. Not after a failure: the transport may still be using them."""
        self._memory.unbind()

    def is_ready(self) -> bool:
        """True once the user's stream has reached the call; always, for host arrays."""
        entry = self._memory.entry
        return self._side is None or entry is None or self._side.has_reached(entry)

    def start(self, held: bool = False) -> None:
        """Start what waits for nothing; `held`: no message of phase "join" before `release`."""
        if self.program.scratch_nbytes:
            self._memory.take_scratch(self.program.scratch_nbytes)
        self.remaining = len(self._steps)
        self._unposted, self._held = self._messages, held
        self._waits = list(self.program.waits)
        ready = self._first
        if held:
            for index in self._joining:
                self._waits[index] += 1
            ready = [index for index in ready if not self._waits[index]]
        self._begin(ready)

    def release(self) -> None:
        """Start phase "join", which was held."""
        self._held = False
        ready = []
        for index in self._joining:
            self._waits[index] -= 1
            if not self._waits[index]:
                ready.append(index)
        self._begin(ready)

    @property
    def left(self) -> float:
        """The part of its messages to post until few are left (ENDING), or before a held "join"; at most 0: none."""
        last = self._joining_messages if self._held else self._ending
        return (self._unposted - last) / max(1, self._messages - last)

    @property
    def drained(self) -> bool:
        """True once nothing is under way, so that an execution whose "join" is held may be given up."""
        return not self._idle and not self._launched and not any(self._queues)

    def advance(self) -> bool:
        """Complete what Transport.take_in has taken in and start what waited for it; True once all is done.

        Raises:
            PeerFailed, TransportError: as Request.test.
        """
        idle = True
        for queue in self._queues:
            while queue and queue[0][0].poll():
                self._finish(queue.popleft()[1])
                idle = False
        if self._side is not None:
            while self._launched and self._side.runtime.is_done(self._launched[0][0]):
                self._finish(self._launched.popleft()[1])
                idle = False
        if idle and self._idle:
            self._finish(self._idle.popleft(), run=True)
        return not self.remaining

    def pending_peers(self) -> Sequence[int]:
        """Transport ranks that a posted message waits for, sorted."""
        return sorted({peer for queue in self._queues if queue for peer in queue[0][0].pending_peers()})

    def _begin(self, ready: Iterable[int]) -> None:
        """Start the actions `ready`, and all that can start as a consequence."""
        post, steps, next_post, waits = self.transport._post, self._steps, self._next_post, self._waits
        for first in ready:
            index, step = first, steps[first]
            if step[0] is None:
                if index in self._leisurely:
                    self._idle.append(index)
                else:
                    self._finish(index, run=True)
                continue
            while True:
                step[1].append((post(step[0]), index))
                self._unposted -= 1
                index = next_post[index]
                if index < 0:
                    break
                waits[index] -= 1
                if waits[index]:
                    break
                step = steps[index]

    def _finish(self, index: int, run: bool = False) -> None:
        """Action `index` is complete, or is to be run first: start what waited for it."""
        if run:
            step = self._steps[index]
            step[1](*step[2:])
            if self._side is not None:
                self._launched.append((self._side.event(), index))
                return
        self.remaining -= 1
        followers = self._successors[index]
        if not followers:
            return
        waits, ready = self._waits, []
        for follower in followers:
            waits[follower] -= 1
            if not waits[follower]:
                ready.append(follower)
        if ready:
            self._begin(ready)


def first_order(action: Action) -> int:
    """Receives, then sends, then the rest."""
    return 2 if type(action) is not Message else int(action.sends)
