"""Programs that calls are likely to need next, made before, so that no call in which a rank is late waits for them.

Once the first call of a signature is over, the likely ones should this rank itself be late: once it has come everybody
waits for it. All others while a call waits for ranks to come, one at a time.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lanterne.collectives.execute.arguments import CheckedCall, Key
from lanterne.collectives.execute.plans import MAX_CHECKED_RANKS, RankPrograms, is_in_roles
from lanterne.transport.board.late_policy import Policy, from_text, likely
from lanterne.transport.board.sequencer import POLICY as SEQUENCER
from lanterne.transport.machine import Machine
from lanterne.transport.steering import steers, value


@steers
@dataclass(frozen=True)
class ReadyPolicy:
    """How much of the time in which calls wait for ranks goes into programs."""

    # A call that has waited so long for the board waits for ranks to come.
    idle_s: float = value(
        4e-3,
        "the board answers within 1 ms once all have come, but where ranks share cores",
        half="calls for which nobody is late make programs, once each",
        double="ranks that are late by a few ms find nothing made",
    )
    # Not all of a wait: where hosts share cores, as in the lab, what is made makes others come later, or start later.
    idle_part: float = value(
        0.25,
        "chosen; 8 hosts on 2 cores: one program after the other made a call of 300 ms 50 ms longer",
        half="twice as many calls pass until all programs are made",
        double="calls of ranks that share cores are held up longer, once for each program",
    )


POLICY = ReadyPolicy()


class IdleTime:
    """The time for which one call waits for ranks to come, on the clock of `machine`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._next_s: float | None = None

    def use(self, work: Callable[[], None]) -> None:
        """Do `work` if it is time for it: not all at once."""
        now_s = self._machine.now_s()
        if self._next_s is None:
            self._next_s = now_s + POLICY.idle_s
        elif now_s > self._next_s:
            work()
            done_s = self._machine.now_s()
            self._next_s = done_s + (done_s - now_s) * (1 / POLICY.idle_part - 1)


class ReadyPrograms:
    """Makes `programs` of rank `rank` of `world_size` before they are needed.

    Without waiting they would be made when the board has spoken: on 8 hosts that share two cores that took 30 ms of a
    call of 300 ms.
    """

    def __init__(self, programs: RankPrograms, rank: int, world_size: int) -> None:
        self._programs = programs
        self._rank = rank
        self._world_size = world_size
        # By signature, the keys of the programs that are still to be made.
        self._left: dict[tuple[Key, bool, str], Iterator[Key]] = {}

    def after(self, call: CheckedCall, policy: str) -> None:
        """A call like those to come is over: make what this rank needs should it be late itself, unless it is made.

        Cost: up to three options, 10 ms each.
        """
        signature = call.key, call.in_place, policy
        if call.entry is not None or signature in self._left:
            return
        if len(self._left) >= SEQUENCER.max_signatures:
            self._left.clear()  # What is still kept (RankPrograms) is found, not made again.
        mine = [option.choice for option in likely(from_text(policy), self._rank)]
        self._left[signature] = self._others(call.key, policy, mine)
        for choice in mine:
            key = key_of(call.key, choice, self._rank)
            if is_in_roles(key, self._world_size):
                self._programs.find(key, call.dtype, call.in_place)

    def meanwhile(self, call: CheckedCall, policy: str, idle: IdleTime) -> None:
        """A call waits for others to come: make one program more, if any is left and `idle` has time for it.

        Cost: up to 10 ms, in a part of the looks alone.
        """
        left = self._left.get((call.key, call.in_place, policy))
        if left is not None:
            idle.use(lambda: self._make(next(left, None), call))

    def _make(self, key: Key | None, call: CheckedCall) -> None:
        if key is not None:
            self._programs.find(key, call.dtype, call.in_place)

    def _others(self, key: Key, policy: str, mine: Sequence[str]) -> Iterator[Key]:
        """One of each role that this rank may have, the likeliest options first, but those for its own choices `mine`.

        Of many ranks none: each has another role. Of several late ranks none: there are too many sets of them.
        """
        if self._world_size > MAX_CHECKED_RANKS:
            return
        options = from_text(policy)
        by_rank = [_ordered(options, rank) for rank in range(self._world_size)]
        seen = {(choice, self._programs.role_of(key_of(key, choice, self._rank), self._rank)) for choice in mine}
        for place in range(max(map(len, by_rank))):
            for rank, choices in enumerate(by_rank):
                late = key_of(key, choices[place], rank) if place < len(choices) else None
                if late is None or not is_in_roles(late, self._world_size):
                    continue
                role = choices[place], self._programs.role_of(late, rank)
                if role not in seen:
                    seen.add(role)
                    yield late


def _ordered(policy: Policy, rank: int) -> list[str]:
    """The choices for the late rank `rank`, the likeliest first."""
    fitting = [option for option in policy.options if option.fits((rank,))]
    return [option.choice for option in dict.fromkeys((*likely(policy, rank), *fitting))]


def key_of(key: Key, choice: str, late_rank: int | tuple[int, ...]) -> Key:
    """`key` of the algorithm that a record's `choice` names; `late_rank` where it names no ranks."""
    choice, several, ranks = choice.partition("@")
    if several:
        late_rank = tuple(map(int, ranks.split(",")))
    algorithm, chunks, *cut = choice.split("/")
    joined = int(cut[0]) if cut else None
    return key._replace(algorithm=algorithm, num_chunks=int(chunks), late_rank=late_rank, joined=joined)
