"""The store's list of who takes part in a job: ranks by epochs, guards, the launcher, and who waits to come in."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from lanterne.transport.steering import steers, value
from lanterne.transport.store.admissions import Admissions
from lanterne.transport.store.epoch import Epoch, of_its_epoch
from lanterne.transport.store.handler import Answer, Connection, Refusal, Service
from lanterne.transport.wire import Kind, pack_ranks, take_frame, unpack_ranks

MAX_WORLD_SIZE, MAX_EPOCHS = 1 << 16, 1 << 31
# The exit code of a rank whose guard ended before it.
UNKNOWN_CODE = -1


@steers
@dataclass(frozen=True)
class MembersPolicy:
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


POLICY = MembersPolicy()


class Decides(Protocol):
    """What the members need of the Heirs."""

    @property
    def decided(self) -> list[tuple[int, int, bytes]]: ...
    def decide(self, what: bytes) -> bool: ...
    def drop_the_lost(self) -> None: ...
    def out_of_reach(self, epoch: int) -> list[int]: ...


class Members:
    """Membership and death notices.

    A *member* is a rank itself. A *guard* is a rank's parent, which knows how it ended; its number is what its launcher
    calls it. A *watcher* is the launcher. A member whose connection ends without goodbye has died.

    Where a store was lost and this one has taken over, all come back and say what they were told there.

    Attributes: `epoch`, the Epoch in force; `world_size`, that the job began with, as the first rank says.
    """

    def __init__(self, store: Service, heirs: Decides) -> None:
        self._store = store
        self._heirs = heirs
        self.world_size: int = 0
        self.epoch: Epoch = Epoch(store, self)
        self._next: Epoch | None = None  # in force once all of its ranks have what it needs
        self._admissions = Admissions(store, self.epoch, self)
        self._guards: dict[int, Connection] = {}
        self._outside: set[int] = set()  # guards whose processes are no members, as they said when they came
        self._watchers: dict[Connection, None] = {}  # in the order in which they came, as all that is told
        self._returns = False  # from another store
        self._ended: dict[int, int] = {}  # exit codes, by number
        self._fault: list[int | bytes] | None = None
        store.route(Kind.JOIN, "ii", self._join)
        store.route(Kind.ENTER, "ii", self._enter)
        store.route(Kind.RETURN, "iiibb", self._return)
        store.route(Kind.GUARD, "iii", self._guard)
        store.route(Kind.WATCH, "", self._watch)
        store.route(Kind.ENDED, "iib", self._end)
        store.route(Kind.RESTART, "ib", self._restart)
        store.route(Kind.FAULT, "ib", self._report_fault)
        store.route(Kind.LEAVE, "", of_its_epoch(Epoch.leave))
        store.route(Kind.END, "i", of_its_epoch(Epoch.vote))
        store.route(Kind.GATHER, "bb", of_its_epoch(Epoch.gather))
        store.route(Kind.ABSENT, "b", of_its_epoch(Epoch.absent))
        store.route(Kind.MEET, "bbbbi", of_its_epoch(lambda epoch, *args: epoch.meetings.meet(*args)))
        store.route(Kind.GROW, "bbbi", of_its_epoch(self._grow))

    # -- who comes

    def _check_new(self, connection: Connection, world_size: int) -> None:
        if connection.rank is not None or connection.guards is not None:
            raise Refusal("got a second rank from one client")
        if not 1 <= world_size <= MAX_WORLD_SIZE:
            raise Refusal(f"got a world of {world_size} ranks, expected 1 to {MAX_WORLD_SIZE}")
        if not self.world_size:
            self.world_size = world_size
            self.epoch.begin_with(world_size)
        if world_size != self.world_size:
            raise Refusal(f"got a world of {world_size} ranks, expected {self.world_size} as on the other ranks")

    def _join(self, connection: Connection, request_id: int, rank: int, world_size: int) -> None:
        if self.epoch.number:
            raise Refusal(f"got rank {rank} of a job that has gone on without it, expected init(join=...)")
        self._check_new(connection, world_size)
        self.epoch.enter(connection, request_id, rank)
        self._admissions.look(self.epoch)

    def _enter(self, connection: Connection, request_id: int, number: int, rank: int) -> None:
        epoch = next((each for each in self._epochs if each.number == number), None)
        if epoch is None or connection.rank is not None or connection.guards is not None:
            raise Refusal(f"got rank {rank} of epoch {number}, which is over, or from a client that is another")
        epoch.enter(connection, request_id, rank)

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
            known: frames: notices of who has gone, and the answers of meetings.
        """
        if not roll:
            raise Refusal("got a roll of no ranks")
        world_size, *rest = unpack_ranks(roll)
        count = len(rest) // 2
        if not 0 <= number < MAX_EPOCHS or 2 * count != len(rest) or not 0 <= rank < count:
            raise Refusal(f"got rank {rank} of {count} in epoch {number}")
        self._check_new(connection, world_size)
        epoch = self._epoch_again(number, rest[:count], rest[count:], begun=bool(begun))
        for kind, decided_in, body in self._heirs.decided:
            if decided_in == number and kind != Kind.ELECTORS:
                epoch.learn(kind, body)
        frames = bytearray(known)
        while frame := take_frame(frames):
            epoch.learn(frame[0], frame[2])
        epoch.come_back(connection, request_id, rank)
        if epoch is self.epoch:
            self._give_up_next([epoch.places[rank]])
        self._wait_for_all()
        self._admissions.look(self.epoch)

    def _wait_for_all(self) -> None:
        """They come back from a store that was lost, for so long."""
        if not self._returns:
            self._returns = True
            self._store.after(POLICY.return_s, self._miss)
            self._store.after(POLICY.silent_s, self._miss_hosts)

    def _epoch_again(self, number: int, places: Sequence[int], numbers: Sequence[int], *, begun: bool) -> Epoch:
        """The epoch `number`, as its ranks say that it is."""
        epoch = next((each for each in self._epochs if each.number == number), None)
        if epoch is None:
            if number < self.epoch.number or (not begun and self._next is not None and number < self._next.number):
                raise Refusal(f"got a rank of epoch {number}, which is over")
            epoch = Epoch(self._store, self, number, places)
            epoch.numbers = tuple(numbers)
        if begun and number > self.epoch.number:
            self._put_in_force(epoch)
        elif number > self.epoch.number:
            self._next = epoch
            self._give_up_next(self.epoch.places_here)
        return epoch

    def _give_up_next(self, places: Sequence[int]) -> None:
        """Who has come back to the epoch in force, or asks to be taken in, was not ready for the next."""
        for place in places:
            if self._next is not None:
                self._next.place_died(place, b"it was not ready when the store was lost")

    def _miss(self) -> None:
        """Who has not come back by now, and of whom no guard says that it lives, is dead."""
        for epoch in self._epochs:
            for rank, number in enumerate(epoch.numbers):
                if not epoch.knows(rank) and (number in self._outside or not self.has_guard(number)):
                    why = f"it has not come to the store that took over, in {POLICY.return_s:g} s"
                    epoch.declare_dead(rank, why.encode())

    def _miss_hosts(self) -> None:
        """Nor have those come whose hosts did not answer when this store took over."""
        for epoch in self._epochs:
            for rank in self._heirs.out_of_reach(epoch.number):
                if not epoch.knows(rank):
                    epoch.declare_dead(rank, b"its host does not answer the store that took over")

    def decide(self, what: bytes) -> bool:
        """Whether `what` is so, whichever store leads."""
        return self._heirs.decide(what)

    def settle(self) -> None:
        """Some go on, and others do not: so do the hosts that decide."""
        self._heirs.drop_the_lost()

    @property
    def _epochs(self) -> list[Epoch]:
        return [self.epoch] if self._next is None else [self.epoch, self._next]

    def _guard(self, connection: Connection, request_id: int, number: int, world_size: int, outside: int) -> None:
        self._check_new(connection, world_size)
        if number in self._guards or not 0 <= number < MAX_WORLD_SIZE:
            raise Refusal(f"got rank {number} twice, expected each rank of the job once")
        self._guards[number] = connection
        if outside:
            self._outside.add(number)
            self._wait_for_all()
        connection.guards = number
        self._store.reply(connection, request_id)
        self.epoch.tell_gone(connection)

    def _watch(self, connection: Connection, request_id: int) -> None:
        self._watchers[connection] = None
        self._store.reply(connection, request_id)
        if self._fault is not None:
            self._store.send(connection, Kind.FAULT_NOTICE, 0, self._fault)

    # -- who is taken in

    def _grow(
        self,
        epoch: Epoch,
        connection: Connection,
        request_id: int,
        key: bytes,
        packed: bytes,
        terms: bytes,
        limit_ms: int,
    ) -> Answer:
        """GROW: a meeting after which those that wait are taken in."""
        if epoch is not self.epoch:
            raise Refusal("got a communicator of an epoch that is over, expected the one that grow returned")
        if others := set(epoch.living) - set(unpack_ranks(packed)):
            raise Refusal(f"got ranks without {sorted(others)}, expected the communicator of all that live")

        def take_in(ranks: Sequence[int], told: Sequence[bytes]) -> bytes:
            return self._take_in(ranks, terms) if len(set(told)) == 1 else b""

        return epoch.meetings.meet(connection, request_id, key, packed, b"", terms, limit_ms, take_in)

    def _take_in(self, survivors: Sequence[int], terms: bytes) -> bytes:
        """Have those that wait make an epoch with `survivors` of that in force: its roll; empty if nobody can be."""
        made = self._admissions.admit(self.epoch, survivors, terms)
        if made is None:
            return b""
        places, numbers, new = made
        self._next = Epoch(self._store, self, max(each.number for each in self._epochs) + 1, places)
        self._next.numbers = tuple(numbers)
        newcomers = [places.index(place) for place in new]
        self._admissions.answer(self._next.number, places, terms, newcomers)
        return pack_ranks((self._next.number, len(places), *newcomers))

    def begin_anew(self) -> bool:
        """Nobody of the epoch in force lives: whether those that wait are the job now, or may still become it.

        They are once every process waits that has a guard and has not ended for good; spares alone are no job.
        """
        if not self._guards or self.epoch.somebody_left:
            return False
        if self._next is not None and self._next.living:
            return True  # They are on their way in.
        if not self._guards.keys() - self._ended.keys() <= self._admissions.numbers:
            return True
        if (terms := self._admissions.claimed) is None:
            return False
        self._take_in((), terms)
        return True

    def waits(self, number: int) -> None:
        """The process of that guard waits to be taken in: it is no member, nor is it to end because others have."""
        for epoch in self._epochs:
            if number in epoch.numbers and not epoch.knows(rank := epoch.numbers.index(number)):
                epoch.declare_dead(rank, b"it waits to be taken in")
        if number in self._guards:
            self._store.send(self._guards[number], Kind.WAITING_NOTICE, 0, [1])

    def begin(self, epoch: Epoch) -> None:
        """All ranks of `epoch` have what it needs: it is in force."""
        if epoch is self._next:
            self._put_in_force(epoch)

    def _put_in_force(self, epoch: Epoch) -> None:
        before, self.epoch = self.epoch, epoch
        if self._next is not None and self._next.number <= epoch.number:
            self._next = None
        self._tell_who_goes_on(before.numbers, epoch.numbers)
        self._admissions.look(epoch)

    # -- who goes

    def has_guard(self, number: int) -> bool:
        """Whether a guard sees to the end of that process."""
        return number in self._guards

    def on_gone(self, epoch: Epoch, rank: int, reason: bytes | None) -> None:
        """A rank has died, or without a reason left: guards are told of what befalls the epoch in force."""
        if epoch is self.epoch and reason is not None:
            self.tell_guards(Kind.DIED_NOTICE, [epoch.numbers[rank], reason])
            if self._next is not None:
                self._next.place_died(epoch.places[rank], reason)
        self._admissions.look(self.epoch)

    def on_met(self, epoch: Epoch, ranks: Sequence[int], survivors: Sequence[int]) -> None:
        """Some ranks go on without those that did not come."""
        self._tell_who_goes_on([epoch.numbers[rank] for rank in ranks], [epoch.numbers[rank] for rank in survivors])

    def _tell_who_goes_on(self, before: Sequence[int], now: Sequence[int]) -> None:
        self.tell_guards(Kind.GOES_ON_NOTICE, [pack_ranks(before), pack_ranks(now)])

    def tell_guards(self, kind: Kind, fields: list[int | bytes]) -> None:
        """Send a notice to all guards and watchers."""
        for connection in [*self._guards.values(), *self._watchers]:
            self._store.send(connection, kind, 0, fields)

    def _check_guard(self, connection: Connection, number: int) -> None:
        if connection.guards != number:
            raise Refusal(f"got the end of rank {number} from a client that is not its guard")

    def _end(self, connection: Connection, _request_id: int, number: int, code: int, reason: bytes) -> Answer:
        self._check_guard(connection, number)
        self._record_end(number, code, reason)
        return ()

    def _restart(self, connection: Connection, _request_id: int, number: int, reason: bytes) -> Answer:
        self._check_guard(connection, number)
        for watcher in self._watchers:
            self._store.send(watcher, Kind.RESTART_NOTICE, 0, [number, reason])
        for epoch in self._epochs:
            epoch.process_ended(number, 1, reason)
        return ()

    def _record_end(self, number: int, code: int, reason: bytes) -> None:
        if number in self._ended:
            return
        self._ended[number] = code
        for watcher in self._watchers:
            self._store.send(watcher, Kind.ENDED_NOTICE, 0, [number, code, reason])
        for epoch in self._epochs:
            epoch.process_ended(number, code, reason)
        # Spares that were never needed are told, too.
        if {*range(self.world_size), *(self._guards.keys() & {*self.epoch.numbers})} <= self._ended.keys():
            for guard in self._guards.values():
                self._store.send(guard, Kind.FINISHED_NOTICE, 0)
        self._admissions.look(self.epoch)

    def _report_fault(self, _connection: Connection, _request_id: int, code: int, text: bytes) -> Answer:
        if self._fault is None:
            self._fault = [code, text]
            for watcher in self._watchers:
                self._store.send(watcher, Kind.FAULT_NOTICE, 0, self._fault)
        return ()

    def connection_closed(self, connection: Connection) -> None:
        """The client is gone."""
        self._watchers.pop(connection, None)
        self._admissions.connection_closed(connection)
        if connection.guards is not None:
            del self._guards[connection.guards]
            self._record_end(
                connection.guards, UNKNOWN_CODE, b"ended with its guard, which was killed, or its host was lost"
            )
        if isinstance(connection.epoch, Epoch):
            connection.epoch.connection_closed(connection)
