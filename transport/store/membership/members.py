"""Membership of a job at its store: the epoch in force, and the ranks that enter it."""

from collections.abc import Sequence

from lanterne.transport.store.decision_log import Decisions
from lanterne.transport.store.handler import MAX_WORLD_SIZE, Answer, Connection, Refusal, Service
from lanterne.transport.store.membership.admissions import Admissions
from lanterne.transport.store.membership.epoch import Epoch, of_its_epoch
from lanterne.transport.store.membership.guards import Guards
from lanterne.transport.store.membership.meetings import BEGIN_KEY
from lanterne.transport.wire import Kind, pack_frame, pack_ranks, unpack_fields, unpack_ranks

# Waiting ranks look at the store every 2 ms, and follow another one within SOON_S. Ranks that compute do not look:
# RETURN_S is longer than most iterations.
SOON_S, RETURN_S = 1.0, 10.0


class Members:
    """Epochs of a job: the one in force, and the next one while its ranks get ready.

    A *member* is a rank. A member whose connection ends without LEAVE has died.

    Attributes: `epoch`, the Epoch in force; `next_epoch`, in force once all of its ranks are ready, or None; `guards`,
    the Guards; `world_size`, at the start of the job, 0 before the first client.
    """

    def __init__(self, store: Service, decisions: Decisions) -> None:
        self._store = store
        self.decisions: Decisions = decisions
        self.world_size: int = 0
        self.epoch: Epoch = Epoch(store, self)
        self.next_epoch: Epoch | None = None
        self._admissions = Admissions(store, self.epoch, self)
        self.guards: Guards = Guards(store, self._admissions, self)
        store.route(Kind.JOIN, "ii", self._join)
        store.route(Kind.ENTER, "ii", self._enter)
        store.route(Kind.GUARD, "iii", self._guard)
        store.route(Kind.LEAVE, "", of_its_epoch(Epoch.leave))
        store.route(Kind.END, "i", of_its_epoch(Epoch.vote))
        store.route(Kind.GATHER, "bb", of_its_epoch(Epoch.gather))
        store.route(Kind.ABSENT, "b", of_its_epoch(Epoch.absent))
        store.route(Kind.MEET, "bbbbi", of_its_epoch(lambda epoch, *args: epoch.meetings.meet(*args)))
        store.route(Kind.GROW, "bbbi", of_its_epoch(self._grow))
        if decisions.decided:
            self._take_over()

    @property
    def epochs(self) -> list[Epoch]:
        """Return the epoch in force, and the next one, if there is one."""
        return [self.epoch] if self.next_epoch is None else [self.epoch, self.next_epoch]

    # -- joining

    def check_new(self, connection: Connection, world_size: int) -> None:
        """Check the first request of a rank or a guard, of a job of `world_size` ranks.

        Raises:
            Refusal: the client has joined before, or the size is another.
        """
        if connection.rank is not None or connection.guards is not None:
            raise Refusal("got a second rank from one client")
        if not 1 <= world_size <= MAX_WORLD_SIZE:
            raise Refusal(f"got a world of {world_size} ranks, expected 1 to {MAX_WORLD_SIZE}")
        if not self.world_size and self._make(0, places := range(world_size), places, world_size):
            self.world_size = world_size
            self.epoch = Epoch(self._store, self, 0, places, places)
            self._admissions.look(self.epoch)
        if world_size != self.world_size:
            raise Refusal(f"got a world of {world_size} ranks, expected {self.world_size} as on the other ranks")

    def _join(self, connection: Connection, request_id: int, rank: int, world_size: int) -> None:
        if self.epoch.number:
            raise Refusal(f"got rank {rank} of a job that has gone on without it, expected init(join=...)")
        self.check_new(connection, world_size)
        self.epoch.enter(connection, request_id, rank)
        self._admissions.look(self.epoch)

    def _enter(self, connection: Connection, request_id: int, number: int, rank: int) -> None:
        epoch = next((each for each in self.epochs if each.number == number), None)
        if epoch is None or connection.rank is not None or connection.guards is not None:
            raise Refusal(f"got rank {rank} of epoch {number}, which is over, or from a client that is another")
        epoch.come_back(connection, request_id, rank)

    def _guard(self, connection: Connection, request_id: int, number: int, world_size: int, outside: int) -> None:
        self.check_new(connection, world_size)
        if self.guards.has(number) or not 0 <= number < MAX_WORLD_SIZE:
            raise Refusal(f"got rank {number} twice, expected each rank of the job once")
        self.guards.add(connection, number, outside=bool(outside))
        self._store.reply(connection, request_id)

    # -- what the store before has decided

    def _make(self, number: int, places: Sequence[int], numbers: Sequence[int], world_size: int) -> bool:
        """Decide the ranks of epoch `number`; False once this store may decide nothing any more."""
        roll = pack_ranks((world_size, *places, *numbers))
        return self.decisions.decide(pack_frame(Kind.JOIN, number, [roll]))

    def _take_over(self) -> None:
        """Go on with the latest epoch that had begun; its ranks that do not come back are dead."""
        rolls, begun = dict[int, tuple[int, ...]](), 0
        for kind, number, body in self.decisions.decided:
            if kind == Kind.JOIN:
                rolls[number] = unpack_ranks(unpack_fields(body, "b")[0])
            elif kind == Kind.REPLY:
                key, *answer = unpack_fields(body, "bb*")
                if key == BEGIN_KEY and 2 * len(answer) + 1 == len(rolls[number]):
                    begun = max(begun, number)
        self.world_size, *rest = rolls[begun]
        count = len(rest) // 2
        self.epoch = Epoch(self._store, self, begun, rest[:count], rest[count:])
        decided = [(kind, body) for kind, number, body in self.decisions.decided if number == begun]
        self.decisions.keep(begun)
        for kind, body in decided:
            self.epoch.recall(kind, body)
        self._admissions.look(self.epoch)
        self._store.after(SOON_S, self.epoch.meetings.give_up)
        self._store.after(RETURN_S, self._give_up_absent)

    def _give_up_absent(self) -> None:
        epoch = self.epoch
        for rank, number in enumerate(epoch.numbers):
            if not epoch.knows(rank) and not self.guards.vouches(number):
                epoch.declare_dead(rank, f"it has not come to the store that took over, in {RETURN_S:g} s".encode())

    # -- growth

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
        """Make an epoch of `survivors` and the applicants; return its roll, empty where none can be taken in."""
        made = self._admissions.admit(self.epoch, survivors, terms)
        if made is None:
            return b""
        places, numbers, new = made
        number = max(each.number for each in self.epochs) + 1
        if not self._make(number, places, numbers, self.world_size):
            return b""
        self.next_epoch = Epoch(self._store, self, number, places, numbers)
        newcomers = [places.index(place) for place in new]
        self._admissions.answer(number, places, terms, newcomers)
        return pack_ranks((number, len(places), *newcomers))

    def begin_anew(self) -> bool:
        """Return whether the applicants are the job now, or may still become it: no rank of the epoch in force lives.

        They are once every process waits that has a guard and has not ended for good, and one of them claims a place.
        """
        running = self.guards.running
        if running is None or self.epoch.somebody_left:
            return False
        if self.next_epoch is not None and self.next_epoch.living:
            return True  # They are entering.
        if not running <= self._admissions.numbers:
            return True
        if (terms := self._admissions.claimed) is None:
            return False
        self._take_in((), terms)
        return True

    def waits(self, number: int) -> None:
        """Record that process `number` waits to be taken in: it is no member, and must not end with the others."""
        for epoch in self.epochs:
            if number in epoch.numbers and not epoch.knows(rank := epoch.numbers.index(number)):
                epoch.declare_dead(rank, b"it waits to be taken in")
        self.guards.tell_waiting(number)

    def begin(self, epoch: Epoch) -> None:
        """Put `epoch` in force: all its ranks are ready."""
        if epoch is self.next_epoch:
            self.put_in_force(epoch)

    def put_in_force(self, epoch: Epoch) -> None:
        """Make `epoch` the one in force."""
        before, self.epoch = self.epoch, epoch
        if self.next_epoch is not None and self.next_epoch.number <= epoch.number:
            self.next_epoch = None
        self.decisions.keep(epoch.number)
        self.guards.begin(before.numbers, epoch.numbers)
        self._admissions.look(epoch)

    # -- ends

    def on_gone(self, epoch: Epoch, rank: int, reason: bytes | None) -> None:
        """Act on the end of a rank, by a death if there is a `reason`: guards learn of those of the epoch in force."""
        if epoch is self.epoch and reason is not None:
            self.guards.tell(Kind.DIED_NOTICE, [epoch.numbers[rank], reason])
            if self.next_epoch is not None:
                self.next_epoch.place_died(epoch.places[rank], reason)
        self._admissions.look(self.epoch)

    def connection_closed(self, connection: Connection) -> None:
        """Act on the end of a client."""
        self._admissions.connection_closed(connection)
        self.guards.connection_closed(connection)
        if isinstance(connection.epoch, Epoch):
            connection.epoch.connection_closed(connection)
