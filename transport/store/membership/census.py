"""Who of an epoch's ranks is a member, has left or has died."""

from lanterne.transport.store.handler import Connection, Refusal, Service
from lanterne.transport.wire import Kind


class Census:
    """The members of an epoch, and its ranks that are none any more, of which all members are told in one order.

    Attributes: `members`, the connection of each by rank; `left`, those that have ended in order; `died`, why, by rank.
    """

    def __init__(self, store: Service) -> None:
        self.members: dict[int, Connection] = {}
        self.left: set[int] = set()
        self.died: dict[int, bytes] = {}
        self._store = store
        self._gone: list[tuple[Kind, list[int | bytes]]] = []  # the notices of both

    def enter(self, connection: Connection, rank: int, size: int) -> None:
        """`connection` is that of `rank`, one of `size`, from now on.

        Raises:
            Refusal: it is dead, there is no such rank, or it has come before.
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
        """Whether `rank` is a member, or may become one."""
        return rank not in self.died and rank not in self.left

    def knows(self, rank: int) -> bool:
        """Whether `rank` has joined, or is known never to."""
        return rank in self.members or not self.lives(rank)

    def leave(self, rank: int) -> None:
        """`rank` has ended in order: all are told."""
        self.left.add(rank)
        self._tell_gone(Kind.LEFT_NOTICE, [rank])

    def die(self, rank: int, reason: bytes) -> None:
        """`rank` is dead: all are told, it too if it can still hear."""
        self.died[rank] = reason
        self._tell_gone(Kind.DIED_NOTICE, [rank, reason])
        self.members.pop(rank, None)

    def _tell_gone(self, kind: Kind, fields: list[int | bytes]) -> None:
        self._gone.append((kind, fields))
        self.tell(kind, fields)

    def tell_gone(self, connection: Connection) -> None:
        """Tell one that comes late who has left or died, in that order: it blames the first."""
        for kind, fields in self._gone:
            self._store.send(connection, kind, 0, fields)

    def tell(self, kind: Kind, fields: list[int | bytes]) -> None:
        """Send a notice to all members."""
        for member in self.members.values():
            self._store.send(member, kind, 0, fields)
