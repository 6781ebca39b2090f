"""Programs that calls are likely to need next, made before, so that hardly a call in which a rank is late waits for them.

They are made between calls: once the first of a signature is over, those should this rank itself be late (once it has
come everybody waits for it), and what calls without a past begin by, whoever is late; once a rank has been late, those
for the ways in which it may be late again. Not while calls wait: on 8 hosts that share two cores one program took
60 ms, for which a rank that was late by 50 ms had to wait.
"""

from collections.abc import Iterator

from lanterne.collectives.execute.arguments import CheckedCall, Key
from lanterne.collectives.execute.plans import MAX_CHECKED_RANKS, RankPrograms, is_in_roles
from lanterne.transport.board.late_policy import from_text, likely
from lanterne.transport.board.sequencer import POLICY as SEQUENCER


class ReadyPrograms:
    """Makes `programs` of rank `rank` of `world_size` before they are needed.

    Without that they would be made when the board has spoken: on 8 hosts that share two cores that took 30 ms of a
    call of 300 ms.
    """

    def __init__(self, programs: RankPrograms, rank: int, world_size: int) -> None:
        self._programs = programs
        self._rank = rank
        self._world_size = world_size
        self._late: set[int] = {rank}
        # By signature, the ranks for which the likely programs are made, should they be late.
        self._made: dict[tuple[Key, bool, str], set[int]] = {}

    def expect(self, late_rank: int) -> None:
        """Rank `late_rank` was late: it may be again."""
        self._late.add(late_rank)

    def after(self, call: CheckedCall, policy: str) -> None:
        """A call like those to come is over: make what these may need and is not made yet.

        Cost: under 1 us where there is nothing to make; else some programs, at most 10 ms each.
        """
        signature = call.key, call.in_place, policy
        made = self._made.get(signature)
        if call.entry is not None or (made is not None and self._late <= made):
            return
        if len(self._made) >= SEQUENCER.max_signatures:
            self._made.clear()  # What is still kept (RankPrograms) is found, not made again.
        wanted = {} if made is not None else dict.fromkeys(self._without_past(call.key, policy))
        for late_rank in self._late - (made or set()):
            options = likely(from_text(policy), late_rank)
            wanted |= dict.fromkeys(key_of(call.key, option.choice, late_rank) for option in options)
        self._made[signature] = set(self._late)
        for key in wanted:
            if is_in_roles(key, self._world_size):
                self._programs.find(key, call.dtype, call.in_place)

    def _without_past(self, key: Key, policy: str) -> Iterator[Key]:
        """What begins a call of which the board knows nothing yet, one of each role that this rank may have then.

        Of many ranks none: each has another role.
        """
        if self._world_size > MAX_CHECKED_RANKS:
            return
        seen = set()
        for late_rank in range(self._world_size):
            for option in likely(from_text(policy), late_rank)[:1]:
                late = key_of(key, option.choice, late_rank)
                role = option.choice, self._programs.role_of(late, late_rank)
                if role not in seen:
                    seen.add(role)
                    yield late


def key_of(key: Key, choice: str, late_rank: int | tuple[int, ...]) -> Key:
    """`key` of the algorithm that a record's `choice` names; `late_rank` where it names no ranks."""
    choice, several, ranks = choice.partition("@")
    if several:
        late_rank = tuple(map(int, ranks.split(",")))
    algorithm, chunks, *cut = choice.split("/")
    joined = int(cut[0]) if cut else None
    return key._replace(algorithm=algorithm, num_chunks=int(chunks), late_rank=late_rank, joined=joined)
