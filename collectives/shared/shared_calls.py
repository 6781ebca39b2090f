"""Calls through shared memory: what each waits for is a stamp; every wait has a timeout and names who is missing."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from lanterne.collectives.execute.arguments import CheckedCall, Key
from lanterne.collectives.execute.communicator_base import CommunicatorBase
from lanterne.collectives.execute.compile_program import MAX_FOLD_INPUTS
from lanterne.collectives.execute.requests import CollectiveRequest
from lanterne.collectives.shared.pieces import SharedPiece, SharedProgram, shared_program
from lanterne.collectives.shared.shared_memory import SLOT_NBYTES, SharedMemory, digest_of
from lanterne.kernels.arrays import address_of
from lanterne.kernels.cpu.jit import divide_function
from lanterne.kernels.cpu.meet import WORDS
from lanterne.kernels.dtypes import Dtype, kernel_op
from lanterne.kernels.reduce import prepare

# Signatures whose plans are kept.
MAX_PLANS = 128

_move = ctypes.memmove


class SharedPlan:
    """All that calls of one signature have in common on this rank.

    Attributes: `signature`; `digest`; `program`; `exchange`, of a small reduction the one function that does it all.
    """

    __slots__ = ("_divide", "_kernels", "_ranks", "_words", "_words_at", "digest", "exchange", "program", "signature")

    def __init__(
        self, key: Key, dtype: Dtype, in_place: bool, world_size: int, rank: int, memory: SharedMemory
    ) -> None:
        self.signature: str = str(key)
        self.digest: int = digest_of(self.signature)
        self.program: SharedProgram = shared_program(
            key.collective,
            world_size,
            rank,
            key.root,
            key.part_count * dtype.nbytes,
            dtype.nbytes,
            SLOT_NBYTES,
            in_place,
        )
        # (kernel, whether it goes on from the output, first rank, last rank + 1).
        self._kernels: list[tuple[Callable[..., Any], bool, int, int]] = []
        self._divide = None
        self._ranks = world_size
        if key.op is not None and self.program.sources:
            start = 0
            while start < world_size:
                stop = min(world_size, start + MAX_FOLD_INPUTS - (start > 0))
                self._kernels.append((prepare(key.op, dtype, stop - start + (start > 0)), start > 0, start, stop))
                start = stop
            self._divide = divide_function(dtype) if key.op == "mean" else None

        # One piece that all fold is one C function, and the words that it takes.
        self.exchange: Callable[[int, int], int] | None = None
        pieces = self.program.pieces
        small = len(pieces) == len(self._kernels) == 1 and pieces[0].fold is not None
        if small and key.collective == "all_reduce":
            assert key.op is not None, "it folds"
            self.exchange = memory.exchange(kernel_op(key.op, dtype), dtype)
            nbytes = key.part_count * dtype.nbytes
            self._words = (ctypes.c_int64 * len(WORDS))(*memory.exchange_words(nbytes, key.part_count, self.digest))
            self._words_at = ctypes.addressof(self._words)

    def at_once(self, memory: SharedMemory, source: int, target: int) -> bool:
        """Write the next piece and fold it, if all others have written theirs; the addresses are of the arrays."""
        assert self.exchange is not None, "asked before"
        number = memory.number = memory.number + 1
        words = self._words
        words[0], words[1] = source, target
        if self.exchange(number, self._words_at) < self._ranks:
            return False
        memory.all_came(number)
        if self._divide is not None:
            self.divide(target, words[3])
        return True

    def divide(self, out: int, count: int) -> None:
        """End a mean of `count` elements at `out`."""
        if self._divide is not None:
            self._divide(count, out, out, float(self._ranks))

    def fold(self, out: int, slots: Sequence[int], count: int) -> None:
        """Fold `count` elements at the addresses `slots`, one of each rank, into those at `out`."""
        for kernel, goes_on, start, stop in self._kernels:
            if goes_on:
                kernel(count, out, out, *slots[start:stop])
            else:
                kernel(count, out, *slots[start:stop])
        self.divide(out, count)


class SharedPlans:
    """The SharedPlans of a communicator, and its SharedMemory: what `memory` is."""

    def __init__(self, group: CommunicatorBase, memory: SharedMemory) -> None:
        self._group = group
        self.memory: SharedMemory = memory
        self._plans: dict[tuple[Key, bool], SharedPlan] = {}

    def find(self, call: CheckedCall) -> SharedPlan:
        """The SharedPlan of `call`."""
        plan = self._plans.get((call.key, call.in_place))
        if plan is None:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            group = self._group
            plan = SharedPlan(call.key, call.dtype, call.in_place, group.world_size, group.rank, self.memory)
            self._plans[call.key, call.in_place] = plan
        return plan


class SharedRequest(CollectiveRequest):
    """One call. Arrays are kept until it is done, and their addresses are as good."""

    __slots__ = ("_arrays", "_from", "_memory", "_moved", "_next", "_plan", "_read", "_signature", "_to", "_written")

    def __init__(self, communicator: CommunicatorBase, plans: SharedPlans, call: CheckedCall) -> None:
        super().__init__(communicator)
        plan = self._plan = plans.find(call)
        self._memory = plans.memory
        self._signature = plan.signature
        self._arrays: Any = call.in_array, call.out_array
        self._from = 0 if call.in_array is None else address_of(call.in_array)
        self._to = 0 if call.out_array is None else address_of(call.out_array)
        # Pieces written and read; the number of the next one to be read.
        self._written = self._read = self._next = 0

    def _begin(self) -> None:
        """See QueuedCall."""
        memory, plan = self._memory, self._plan
        self._next = memory.number + 1
        if plan.exchange is None or not memory.has_room():
            self._moved: bool = self._advance()
            return
        self._written = 1
        self.done = plan.at_once(memory, self._from, self._to)

    def again(self) -> None:
        """The call is to be made once more, on the same arrays; it is done."""
        self._written = self._read = 0
        self._patience = None
        self.done = False

    def _advance(self) -> bool:
        """See QueuedCall."""
        memory, plan = self._memory, self._plan
        (pieces, first, sources), digest = plan.program, plan.digest
        last = len(pieces)
        self._moved = False
        while self._read < last:
            tells = self._written < last and memory.has_room()
            if tells:
                slot = memory.slot(self._communicator.rank, memory.number + 1)
                for to, source, nbytes in pieces[self._written].writes:
                    _move(slot + to, self._from + source, nbytes)
                self._written += 1
                self._moved = True
                if self._written < last and memory.will_have_room():
                    memory.meet(digest, 0, 0, 0, True)
                    continue
            elif self._written == self._read:
                memory.meet(digest, 0, 0, 0, False)
                return False
            if memory.meet(digest, self._next, first, sources, tells) < sources:
                return False
            self._take(pieces[self._read])
            memory.finished = self._next
            self._next += 1
            self._read += 1
            self._moved = True
        self.done = True
        return True

    def _take(self, piece: SharedPiece) -> None:
        """Copy or fold what all have written of `piece`."""
        memory, number = self._memory, self._next
        for rank, (to, source, nbytes) in piece.reads:
            _move(self._to + to, memory.slot(rank, number) + source, nbytes)
        if piece.fold is not None:
            to, source, count = piece.fold
            self._plan.fold(self._to + to, [slot + source for slot in memory.slots(number)], count)

    def _pending_peers(self) -> Sequence[int]:
        """Transport ranks that this waits for: whose piece is missing, or who is to be done with theirs."""
        communicator, memory, program = self._communicator, self._memory, self._plan.program
        if self._written == self._read:
            waits_for = memory.behind()
        else:
            waits_for = memory.missing(self._next, self._plan.digest, program.first, program.sources)
        return [communicator.ranks[rank] for rank in waits_for if rank != communicator.rank]
