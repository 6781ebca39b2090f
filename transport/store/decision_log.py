"""Decisions of a job's store: kept by its process alone, or written under a lease before anybody learns of them."""

from collections.abc import Callable, Collection
from typing import Protocol

from lanterne.errors import LanterneError, Unavailable
from lanterne.transport.machine import Machine
from lanterne.transport.timeouts import DEFAULT_TIMEOUT_S, RETRY_S
from lanterne.transport.wire import Frame, take_frame

# A quarter of the time after which the lease expires.
RENEW_S = 0.5
# A Sentinel fails over within this; ranks that wait for the store still hear of it before their own time is over.
PATIENCE_S = min(20.0, DEFAULT_TIMEOUT_S / 2)


class Lease(Protocol):
    """Place outside of the store's host that says which store leads, and keeps its decisions: RedisLease."""

    where: str

    def take(self, address: tuple[str, int], /) -> tuple[int, bytes]: ...
    def save(self, term: int, decided: bytes, /) -> bool: ...
    def release(self) -> None: ...


class Loses(Protocol):
    """The part of the store that decisions need."""

    machine: Machine

    def after(self, delay_s: float, function: Callable[[], object]) -> None: ...
    def lose(self, why: str) -> None: ...


class Decisions:
    """The decisions of a store that leads the job in its `term`.

    Args:
        lease: where they are written; None: nowhere, and the job ends with this store.
        decided: frames that the stores before have written.

    Attributes: `term`, how many stores the job has had before; `is_lost`, another store leads, or may.
    """

    def __init__(self, store: Loses, lease: Lease | None = None, term: int = 0, decided: bytes = b"") -> None:
        self.term = term
        self.is_lost: bool = False
        self._store = store
        self._lease = lease
        self._frames = [bytes(frame) for frame in _split(decided)]
        self._reached_s = store.machine.now_s()
        if lease:
            self._renew()

    @property
    def decided(self) -> list[Frame]:
        """Return the decisions, the oldest first."""
        return [frame for each in self._frames if (frame := take_frame(bytearray(each)))]

    def decide(self, frame: bytes, over: Collection[bytes] = ()) -> bool:
        """Decide `frame`, which makes the frames `over` void; False once this store may decide nothing any more.

        Cost: nothing without a lease, else one exchange with Redis.
        """
        if self._lease is None or frame in self._frames:
            return not self.is_lost
        self._frames = [*(each for each in self._frames if each not in over), frame]
        while not self.is_lost and not self._save():
            self._store.machine.sleep(RETRY_S)
        return not self.is_lost

    def keep(self, epoch: int) -> None:
        """Drop the decisions of other epochs than `epoch`; they are written no more from the next time on."""
        self._frames = [
            each for each, (_, number, _) in zip(self._frames, self.decided, strict=True) if number == epoch
        ]

    def _save(self) -> bool:
        """Return whether the decisions are written; set `is_lost` where they never will be."""
        assert self._lease is not None
        now_s, why = self._store.machine.now_s(), "another store leads the job"
        try:
            if self._lease.save(self.term, b"".join(self._frames)):
                self._reached_s = now_s
                return True
        except LanterneError as error:
            if not isinstance(error, Unavailable) and now_s < self._reached_s + PATIENCE_S:
                return False
            why = f"it cannot write to {self._lease.where} of LANTERNE_STORE: {error}"
        self.is_lost = True
        self._store.lose(why)
        return False

    def _renew(self) -> None:
        if not self.is_lost:
            self._save()
            self._store.after(RENEW_S, self._renew)

    def close(self) -> None:
        """Give up the lease: the job is over."""
        if self._lease is not None and not self.is_lost:
            try:
                self._lease.release()
            except LanterneError:
                return  # It expires by itself.


def _split(data: bytes) -> list[bytes]:
    """Return the frames of `data`, each whole."""
    found, rest = [], bytearray(data)
    while rest:
        before = bytes(rest)
        if take_frame(rest) is None:
            break
        found.append(before[: len(before) - len(rest)])
    return found
