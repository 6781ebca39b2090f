"""Programs that calls are likely to need, made before, so that hardly a call in which a rank is late waits for them.

They are made once the first call of a signature is over, and no other is under way: those should this rank itself be
late, since once it has come everybody waits for it, and those should another be. Not while calls wait for ranks: on 8
hosts that share two cores one program took 60 ms then, for which a rank that was late by 50 ms had to wait.
"""

from typing import TypeAlias

from lanterne.collectives.execute.arguments import CheckedCall, Key
from lanterne.collectives.execute.plans import MAX_CHECKED_RANKS, RankPrograms, is_in_roles
from lanterne.kernels.dtypes import Dtype
from lanterne.transport.board.late_policy import from_text, likely
from lanterne.transport.board.sequencer import MAX_SIGNATURES

# What calls alike share: their key, whether they are in place, and the board's policy as text.
Signature: TypeAlias = tuple[Key, bool, str]


class ReadyPrograms:
    """Makes `programs` of rank `rank` of `world_size` before they are needed.

    Without that they would be made when the board has spoken: on 8 hosts that share two cores that took 30 ms of a
    call of 300 ms.
    """

    def __init__(self, programs: RankPrograms, rank: int, world_size: int) -> None:
        self._programs = programs
        # Of many ranks each has a role of its own for whoever else is late.
        self._late_ranks = dict.fromkeys((rank, *(range(world_size) if world_size <= MAX_CHECKED_RANKS else ())))
        self._world_size = world_size
        # The signatures of calls that were over; of these, those for which they are still to be made.
        self._seen: set[Signature] = set()
        self._left: dict[Signature, Dtype] = {}

    def note(self, call: CheckedCall, policy: str) -> None:
        """A call like those to come is over."""
        signature = call.key, call.in_place, policy
        if call.entry is not None or signature in self._seen:
            return
        if len(self._seen) >= MAX_SIGNATURES:
            self._seen.clear()  # What is still kept (RankPrograms) is found, not made again.
        self._seen.add(signature)
        self._left[signature] = call.dtype

    def make(self) -> None:
        """Make what calls like those that were over are likely to need, for a moment in which none is under way.

        Cost: of 8 ranks, some 10 ms for each option of a signature, once.
        """
        while self._left:
            (key, in_place, policy), dtype = self._left.popitem()
            roles = set()
            for late_rank in self._late_ranks:
                for option in likely(from_text(policy), late_rank):
                    late = key_of(key, option.choice, late_rank)
                    if not is_in_roles(late, self._world_size):
                        continue
                    role = option.choice, self._programs.role_of(late, late_rank)
                    if role not in roles:
                        roles.add(role)
                        self._programs.find(late, dtype, in_place)


def key_of(key: Key, choice: str, late_rank: int | tuple[int, ...]) -> Key:
    """`key` of the algorithm that a record's `choice` names; `late_rank` where it names no ranks."""
    choice, several, ranks = choice.partition("@")
    if several:
        late_rank = tuple(map(int, ranks.split(",")))
    algorithm, chunks, *cut = choice.split("/")
    joined = int(cut[0]) if cut else None
    return key._replace(algorithm=algorithm, num_chunks=int(chunks), late_rank=late_rank, joined=joined)
