"""Processes that wait at the store to be taken into a running job: restarted ranks and new ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from lanterne.errors import InputError
from lanterne.transport.store.handler import MAX_WORLD_SIZE, Connection, Refusal, Service
from lanterne.transport.store.terms import ANY, Terms, unpack
from lanterne.transport.wire import Kind, pack_ranks

MAX_APPLICANTS = 1 << 10


class Grown(Protocol):
    """Part of the Epoch in force that admissions need."""

    places: tuple[int, ...]
    numbers: tuple[int, ...]

    @property
    def living(self) -> list[int]: ...
    @property
    def all_came(self) -> bool: ...
    def tell(self, kind: Kind, fields: list[int | bytes]) -> None: ...


class Admitting(Protocol):
    """Part of the Members that admissions need."""

    def begin_anew(self) -> bool: ...
    def waits(self, number: int) -> None: ...


@dataclass(eq=False)
class Applicant:
    """A process that waits. `place`: the one it claims, or ANY; `number`: that of its guard, -1 without one."""

    connection: Connection
    request_id: int
    place: int
    number: int
    terms: Terms


class Admissions:
    """Keep applicants until the members take them in, and choose a place for each.

    Attributes: `is_over`: no rank is left that could take them in, and the applicants were refused.
    """

    def __init__(self, store: Service, epoch: Grown, job: Admitting) -> None:
        self._store = store
        self._epoch = epoch  # in force
        self._job = job
        self.is_over: bool = False
        self._waiting: list[Applicant] = []
        self._taken: list[tuple[Applicant, int]] = []  # with its place
        store.route(Kind.APPLY, "iibi", self._apply)

    def _apply(
        self, connection: Connection, request_id: int, place: int, number: int, packed: bytes, limit_ms: int
    ) -> None:
        if connection.rank is not None or connection.guards is not None or self._of(connection):
            raise Refusal("got a second rank from one client")
        try:
            terms = unpack(packed)
        except InputError as error:
            raise Refusal(str(error)) from None
        if not ANY <= place < MAX_WORLD_SIZE or not -1 <= number < MAX_WORLD_SIZE or limit_ms < 0:
            raise Refusal(f"got place {place} of process {number}, expected 0 to {MAX_WORLD_SIZE - 1}")
        if place >= 0 and any(each.place == place for each in self._waiting):
            raise Refusal(f"got rank {place} twice: another one waits to be taken in as it")
        if len(self._waiting) == MAX_APPLICANTS:
            raise Refusal(f"got more than {MAX_APPLICANTS} ranks that wait to be taken in")
        applicant = Applicant(connection, request_id, place, number, terms)
        self._waiting.append(applicant)
        self._job.waits(number)
        self._store.after(limit_ms / 1e3, lambda: self._expire(applicant, limit_ms / 1e3))
        self.look(self._epoch)

    def _of(self, connection: Connection) -> list[Applicant]:
        return [each for each in self._waiting if each.connection is connection]

    def look(self, epoch: Grown) -> None:
        """Notify the members of `epoch`, which is in force, if an applicant could be taken in."""
        self._epoch = epoch
        if not self._waiting:
            return
        if epoch.places and not epoch.living and epoch.all_came:
            if not self._job.begin_anew():
                self.is_over = True
                for applicant in list(self._waiting):
                    self._refuse(applicant, "the job is over")
        elif placed := self._placed(epoch, epoch.living):
            epoch.tell(Kind.WAITING_NOTICE, [len(placed)])

    @property
    def numbers(self) -> set[int]:
        """Return the numbers of the processes that wait."""
        return {each.number for each in self._waiting}

    @property
    def claimed(self) -> bytes | None:
        """Return the terms of the applicants that claim a place; None where none does."""
        claims = [each.terms for each in self._waiting if each.place >= 0]
        return max(claims, key=lambda terms: bool(terms.transport)).pack() if claims else None

    def _placed(self, epoch: Grown, survivors: Sequence[int]) -> list[tuple[Applicant, int]]:
        """Return the applicants that could be taken in together with `survivors`, and their places."""
        taken = {epoch.places[rank] for rank in survivors}
        known = {*epoch.places, *taken}
        found: list[tuple[Applicant, int]] = []
        # Claims of a place come before applicants that take any.
        for applicant in sorted(self._waiting, key=lambda each: each.place < 0):
            place = applicant.place
            if place < 0:
                claimed = {each.place for each in self._waiting}
                free = sorted(known - taken - claimed)
                place = free[0] if free else max({*known, *claimed}) + 1
            if place not in taken:
                taken.add(place)
                known.add(place)
                found.append((applicant, place))
        return found

    def admit(
        self, epoch: Grown, survivors: Sequence[int], packed: bytes
    ) -> tuple[list[int], list[int], list[int]] | None:
        """Take in applicants together with `survivors`, and refuse those with other terms.

        Returns: places and numbers of all ranks of the next epoch, and the places of the new ones; None without any.
        """
        terms = unpack(packed)
        for applicant in list(self._waiting):
            if why := applicant.terms.refusal(terms):
                self._refuse(applicant, why)
        self._taken = self._placed(epoch, survivors)
        for applicant, _ in self._taken:
            self._waiting.remove(applicant)
        if not self._taken:
            return None
        old = [(epoch.places[rank], epoch.numbers[rank]) for rank in survivors]
        new = [(place, place if each.number < 0 else each.number) for each, place in self._taken]
        places, numbers = zip(*sorted(old + new), strict=True)
        return list(places), list(numbers), [place for place, _ in new]

    def answer(self, number: int, places: Sequence[int], terms: bytes, newcomers: Sequence[int]) -> None:
        """Answer the applicants that were taken in: the epoch, its size, their rank, the terms, and all newcomers."""
        for applicant, place in self._taken:
            ranks = pack_ranks((len(places), places.index(place), *newcomers))
            self._store.reply(applicant.connection, applicant.request_id, [number, terms, ranks])
        self._taken = []

    def _refuse(self, applicant: Applicant, why: str) -> None:
        self._waiting.remove(applicant)
        name = f"rank {applicant.place}" if applicant.place >= 0 else "a rank"
        self._store.send(
            applicant.connection, Kind.ERROR, applicant.request_id, [f"{name} is not taken in: {why}".encode()]
        )

    def _expire(self, applicant: Applicant, limit_s: float) -> None:
        if applicant in self._waiting:
            lives = applicant.place in [self._epoch.places[rank] for rank in self._epoch.living]
            why = f"rank {applicant.place} lives" if lives else "the others have not called grow()"
            self._refuse(applicant, f"{why}, in {limit_s:g} s")

    def connection_closed(self, connection: Connection) -> None:
        """Forget the applicant whose client has gone."""
        for applicant in self._of(connection):
            self._waiting.remove(applicant)
