"""Ranks of an epoch that are members, have left or have died."""

from lanterne.transport.store.handler import Connection, Refusal, Service
from lanterne.transport.wire import Kind


class Census:
    """Members of an epoch, and the ranks that have gone, of which all members are notified in one order.

    Attributes: `members`, connections by rank; `left`, the ranks that have ended in order; `died`, reasons by rank.
    """

    def __init__(self, store: Service) -> None:
        self.members: dict[int, Connection] = {}
        self.left: set[int] = set()
        self.died: dict[int, bytes] = {}
        self._store = store
        self._gone: list[tuple[Kind, list[int | bytes]]] = []  # notices of both

    def enter(self, connection: Connection, rank: int, size: int) -> None:
        """Make `connection` that of `rank`, one of `size`.

        Raises:
            Refusal: the rank is dead, does not exist, or has joined before.
        """
        if rank in self.died:
            raise Refusal(f"got rank {rank}, which is dead to this job: {self.died[rank].decode(errors='replace')}")
        if not 0 <= rank < size:
            raise Refusal(f"got rank {rank}, expected 0 to {size - 1}")
        if rank in self.members or rank in self.left:
            raise Refusal(f"got rank {rank} twice, expected each rank of the job once")
        self.members[rank] = connection

    def rank_of(self, connection: Connection) -> int:
        """The rank of a member.

        Raises:
            Refusal: it is none.
        """
        if connection.rank in self.died:
            reason = self.died[connection.rank].decode(errors="replace")
            raise Refusal(f"got a request of rank {connection.rank}, which is dead to this job: {reason}")
        if connection.rank is None or self.members.get(connection.rank) is not connection:
            raise Refusal("got a request of a member from a client that has not joined, or has left")
        return connection.rank

    def lives(self, rank: int) -> bool:
        """Return whether `rank` is a member, or may become one."""
        return rank not in self.died and rank not in self.left

    def knows(self, rank: int) -> bool:
        """Return whether `rank` has joined, or is known never to."""
        return rank in self.members or not self.lives(rank)

    def leave(self, rank: int) -> None:
        """Record that `rank` has ended in order, and notify all members."""
        self.left.add(rank)
        self._tell_gone(Kind.LEFT_NOTICE, [rank])

    def die(self, rank: int, reason: bytes) -> None:
        """Record that `rank` is dead, and notify all members, and the rank if it is still connected."""
        self.died[rank] = reason
        self._tell_gone(Kind.DIED_NOTICE, [rank, reason])
        self.members.pop(rank, None)

    def _tell_gone(self, kind: Kind, fields: list[int | bytes]) -> None:
        self._gone.append((kind, fields))
        self.tell(kind, fields)

    def tell_gone(self, connection: Connection) -> None:
        """Notify a member that joins late of the ranks that have gone, in order: it blames the first."""
        for kind, fields in self._gone:
            self._store.send(connection, kind, 0, fields)

    def tell(self, kind: Kind, fields: list[int | bytes]) -> None:
        """Send a notice to all members."""
        for member in self.members.values():
            self._store.send(member, kind, 0, fields)
