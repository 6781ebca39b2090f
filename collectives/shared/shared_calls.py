"""Calls through shared memory: what each waits for is a stamp; every wait has a timeout and names who is missing."""

import ctypes
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from lanterne.collectives.execute.arguments import CheckedCall, Key
from lanterne.collectives.execute.communicator_base import CommunicatorBase
from lanterne.collectives.execute.compile_program import MAX_FOLD_INPUTS
from lanterne.collectives.execute.requests import CollectiveRequest
from lanterne.collectives.shared.pieces import SharedFold, SharedPiece, SharedProgram, shared_program
from lanterne.collectives.shared.shared_memory import LAYOUT, SharedMemory, digest_of
from lanterne.kernels.arrays import address_of
from lanterne.kernels.cpu.meet import CALL, DONE, IDLE, Folding, advance_function
from lanterne.kernels.dtypes import Dtype

# Signatures whose plans are kept.
MAX_PLANS = 128
_STANDING = slice(CALL.index("start"), CALL.index("read") + 1)


class SharedPlan:
    """All that calls of one signature have in common on this rank.

    Attributes: `memory`; `signature`; `program`; `advance`, what takes a call on (advance_function);
        `words`, the words CALL that it takes, of which a call sets the first two; `words_at`, their address.
    """

    __slots__ = ("_shapes", "advance", "memory", "program", "signature", "words", "words_at")

    def __init__(
        self, key: Key, dtype: Dtype, in_place: bool, world_size: int, rank: int, memory: SharedMemory
    ) -> None:
        self.memory: SharedMemory = memory
        self.signature: str = str(key)
        part_nbytes = key.part_count * dtype.nbytes
        direct = world_size <= MAX_FOLD_INPUTS
        self.program: SharedProgram = shared_program(
            key.collective, world_size, rank, key.root, part_nbytes, dtype.nbytes, LAYOUT.slot_nbytes,
            in_place=in_place, direct=direct,
        )  # fmt: skip
        program = self.program
        folds = key.op is not None and program.sources
        folding = Folding(key.op, dtype, world_size, MAX_FOLD_INPUTS) if key.op is not None and folds else None
        self.advance: Callable[[int, int], int] = advance_function(LAYOUT, folding, memory.shared)
        self._shapes = [_shape(piece, world_size if folds else 0) for piece in (program.full, program.last)]
        constants = [program.num_pieces, program.step, program.first, program.sources, digest_of(self.signature)]
        addresses = [*map(ctypes.addressof, self._shapes), memory.words_at]
        own = [0] * (len(CALL) - len(constants) - 3)
        self.words: ctypes.Array[ctypes.c_int64] = (ctypes.c_int64 * len(CALL))(*own, *constants, *addresses)
        self.words_at: int = ctypes.addressof(self.words)

    @property
    def standing(self) -> tuple[int, int, int]:
        """Of the call under way: number of its first piece, pieces written, pieces read."""
        start, written, read = self.words[_STANDING]
        return start, written, read


def _shape(piece: SharedPiece, fold_ranks: int) -> Any:
    """The words of `piece`; see SHAPE of kernels.cpu.meet."""
    fold = piece.fold or SharedFold(0, 0, ((0, 0),) * fold_ranks)
    head = [len(piece.writes), len(piece.reads), fold.elements, fold.out]
    words = [*head, *chain(*fold.sources), *chain(*piece.writes), *chain(*piece.reads)]
    return (ctypes.c_int64 * len(words))(*words)


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
            if call.key.root is not None:
                group.engine.attend(group.tuning)
            self._plans[call.key, call.in_place] = plan
        return plan


class SharedRequest(CollectiveRequest):
    """One call. Its arrays are kept until it is done, and their addresses are as good."""

    __slots__ = ("_call", "_from", "_moved", "_plan", "_signature", "_to")

    def __init__(self, communicator: CommunicatorBase, plans: SharedPlans, call: CheckedCall) -> None:
        super().__init__(communicator)
        plan = self._plan = plans.find(call)
        self._signature = plan.signature
        self._call = call
        self._from = 0 if call.in_array is None else address_of(call.in_array)
        self._to = 0 if call.out_array is None else address_of(call.out_array)

    def _begin(self) -> None:
        """See CollectiveRequest."""
        plan = self._plan
        words = plan.words
        words[0], words[1] = self._from, self._to
        self._patience = None
        if plan.advance(1, plan.words_at) == DONE:
            self._finish()

    def _advance(self) -> bool:
        """See CollectiveRequest."""
        plan = self._plan
        found = plan.advance(0, plan.words_at)
        self._moved: bool = found != IDLE
        if found == DONE:
            self._finish()
        return self.done

    def _pending_peers(self) -> Sequence[int]:
        """Transport ranks that this waits for: whose piece is missing, or who is to be done with theirs."""
        communicator, plan = self._communicator, self._plan
        memory = plan.memory
        start, written, read = plan.standing
        if written == read:
            waits_for = memory.behind()
        else:
            waits_for = memory.missing(start + read, plan.program.first, plan.program.sources)
        return [communicator.ranks[rank] for rank in waits_for if rank != communicator.rank]
