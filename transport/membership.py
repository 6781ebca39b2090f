"""Membership of a job: which ranks live, and how those that remain go on together.

A transport moves bytes; its `membership` reports deaths, and agrees on survivors and newcomers. Over a job's store it
is a Group (rank_group.py), between threads of a process a LocalMembership (local.py).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from lanterne.errors import PeerFailed, Unavailable
from lanterne.transport.store.terms import Terms

if TYPE_CHECKING:
    from lanterne.transport.board.seat import Seat
    from lanterne.transport.store.client import StoreClient


class Membership:
    """Ranks that neither die nor leave, as far as anything reports it; the base of those of which something does.

    Attributes:
        store: client of the job's store on this rank; None where the job has none.
        somebody_waits: whether a process waits to be taken in, as far as is known without asking.
        ends_soon: set once a rank did not arrive in time: this process then ends without waiting long for the others.
    """

    store: "StoreClient | None" = None
    somebody_waits: bool = False
    ends_soon: bool = False

    def check_peers(self, peers: Iterable[int] | None = None, done: Collection[int] | None = None) -> None:
        """Raise PeerFailed if one of `peers` is known to be dead; see Group.check_peers."""

    def failed(self) -> Mapping[int, str]:
        """Return the dead ranks and why, as far as is known without asking, first death first."""
        return {}

    def first_death(self, ranks: Iterable[int]) -> PeerFailed | None:
        """Return the death of that of `ranks` which died first, as far as is known without asking."""
        return next((PeerFailed(rank, reason) for rank, reason in self.failed().items() if rank in ranks), None)

    @property
    def left(self) -> Collection[int]:
        """The ranks that have ended in order, as far as is known without asking."""
        return ()

    def on_one_host(self, ranks: Iterable[int]) -> bool:
        """Return whether `ranks` are processes of one host, which may share memory."""
        return False

    def open_board(self, key: str, rank: int, world_size: int) -> "Seat | None":
        """Return the seat of `rank` at the arrival board `key` of `world_size` ranks; None where there is none."""
        return None

    def survivors(
        self, name: str, ranks: Sequence[int], cut: Sequence[int], payload: bytes, limit_s: float
    ) -> dict[int, bytes]:
        """Return the living of `ranks`, with what each brought, alike on all of them; see Group.survivors.

        Raises:
            Unavailable: no rank of this job outlives another.
        """
        raise Unavailable("shrink, agree: no rank of this job outlives another")

    def grow(self, name: str, ranks: Sequence[int], terms: Terms, limit_s: float) -> "Membership | None":
        """Return this rank's Membership of the job's next epoch; see Group.grow.

        Raises:
            Unavailable: this job takes no process in.
        """
        raise Unavailable("grow: this job takes no process in")
