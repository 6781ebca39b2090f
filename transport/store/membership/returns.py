"""Who comes back from a store that was lost to the one that has taken over."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from lanterne.transport.steering import steers, value
from lanterne.transport.store.handler import Connection, Refusal, Service
from lanterne.transport.store.membership.admissions import Admissions
from lanterne.transport.store.membership.epoch import Epoch, Job
from lanterne.transport.store.membership.guards import Guards
from lanterne.transport.wire import Kind, take_frame, unpack_ranks

MAX_EPOCHS = 1 << 31


@steers
@dataclass(frozen=True)
class TakeOverPolicy:
    """How long a store that has taken over waits."""

    # Ranks look every 2 ms, but not while they compute.
    return_s: float = value(
        10.0,
        "chosen: longer than most iterations",
        half="ranks that compute for 6 s are dead to the others",
        double="hosts lost with the store are told 10 s later",
    )
    # The same for ranks of hosts that did not answer the store that has taken over.
    silent_s: float = value(
        0.2,
        "chosen: ranks that wait look every 2 ms",
        half="0.1 s sooner",
        double="a host lost with the store is told 0.2 s later",
    )


POLICY = TakeOverPolicy()


class Remembers(Protocol):
    """What the returns need of the decisions."""

    @property
    def decided(self) -> list[tuple[int, int, bytes]]: ...
    def out_of_reach(self, epoch: int) -> list[int]: ...


class Returning(Job, Protocol):
    """What the returns need of the Members."""

    epoch: Epoch
    next_epoch: Epoch | None

    @property
    def epochs(self) -> list[Epoch]: ...
    def check_new(self, connection: Connection, world_size: int) -> None: ...
    def put_in_force(self, epoch: Epoch) -> None: ...


class Returns:
    """Takes in ranks of a job whose store was lost, with what they were told there, and gives up those that stay away.

    The first that comes back begins the time in which the others must.
    """

    def __init__(
        self, store: Service, decisions: Remembers, admissions: Admissions, guards: Guards, job: Returning
    ) -> None:
        self._store = store
        self._decisions = decisions
        self._admissions = admissions
        self._guards = guards
        self._job = job
        self._has_begun = False
        store.route(Kind.RETURN, "iiibb", self._return)

    def begin(self) -> None:
        """There was another store: who was a rank there has so long to come."""
        if not self._has_begun:
            self._has_begun = True
            self._store.after(POLICY.return_s, self._miss)
            self._store.after(POLICY.silent_s, self._miss_hosts)

    def _return(
        self,
        connection: Connection,
        request_id: int,
        number: int,
        rank: int,
        begun: int,
        roll: bytes,
        known: bytes,
    ) -> None:
        """RETURN: who was rank `rank` of epoch `number` at a store that was lost, with its roll, and what it was told.

        Args:
            begun: whether that epoch is in force, as far as the rank knows.
            roll: what the last store that it was with had answered it: how many there were before that, who is who.
            known: frames: notices of who has gone, and the answers of meetings.
        """
        if not roll:
            raise Refusal("got a roll of no ranks")
        term, world_size, *rest = unpack_ranks(roll)
        count = len(rest) // 2
        if not 0 <= number < MAX_EPOCHS or 2 * count != len(rest) or not 0 <= rank < count:
            raise Refusal(f"got rank {rank} of {count} in epoch {number}")
        self._job.check_new(connection, world_size)
        epoch = self._epoch_again(number, rest[:count], rest[count:], begun=bool(begun))
        epoch.is_informed |= term >= self._store.term - 1
        for kind, decided_in, body in self._decisions.decided:
            if decided_in == number and kind != Kind.ELECTORS:
                epoch.learn(kind, body)
        frames = bytearray(known)
        while frame := take_frame(frames):
            epoch.learn(frame[0], frame[2])
        epoch.come_back(connection, request_id, rank)
        if epoch is self._job.epoch:
            self._give_up_next([epoch.places[rank]])
        self.begin()
        self._admissions.look(self._job.epoch)

    def _epoch_again(self, number: int, places: Sequence[int], numbers: Sequence[int], *, begun: bool) -> Epoch:
        """The epoch `number`, as its ranks say that it is."""
        job = self._job
        epoch = next((each for each in job.epochs if each.number == number), None)
        if epoch is None:
            is_over = number < job.epoch.number
            if is_over or (not begun and job.next_epoch is not None and number < job.next_epoch.number):
                raise Refusal(f"got a rank of epoch {number}, which is over")
            epoch = Epoch(self._store, job, number, places)
            epoch.numbers = tuple(numbers)
        if begun and number > job.epoch.number:
            job.put_in_force(epoch)
        elif number > job.epoch.number:
            job.next_epoch = epoch
            self._give_up_next(job.epoch.places_here)
        return epoch

    def _give_up_next(self, places: Sequence[int]) -> None:
        """Who has come back to the epoch in force, or asks to be taken in, was not ready for the next."""
        for place in places:
            if self._job.next_epoch is not None:
                self._job.next_epoch.place_died(place, b"it was not ready when the store was lost")

    def _miss(self) -> None:
        """Who has not come back by now, and of whom no guard says that it lives, is dead."""
        for epoch in self._job.epochs:
            numbers = enumerate(epoch.numbers)
            absent = [rank for rank, it in numbers if not epoch.knows(rank) and not self._guards.vouches(it)]
            if absent:
                epoch.give_up(absent, f"it has not come to the store that took over, in {POLICY.return_s:g} s".encode())

    def _miss_hosts(self) -> None:
        """Nor have those come whose hosts did not answer when this store took over."""
        for epoch in self._job.epochs:
            for rank in self._decisions.out_of_reach(epoch.number):
                if not epoch.knows(rank):
                    epoch.declare_dead(rank, b"its host does not answer the store that took over")
