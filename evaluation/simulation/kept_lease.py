"""Lease of a simulated job, in place of the one in Redis."""


class KeptLease:
    """Lease in a Redis that is always there: only the latest of the stores that took it can write."""

    where: str = "a kept lease"

    def __init__(self) -> None:
        self.term: int = -1
        self._decided = b""

    def take(self, _address: tuple[str, int]) -> tuple[int, bytes]:
        """As RedisLease."""
        self.term += 1
        return self.term, self._decided

    def save(self, term: int, decided: bytes) -> bool:
        """As RedisLease."""
        if term == self.term:
            self._decided = decided
        return term == self.term

    def release(self) -> None:
        """As RedisLease."""
        self._decided = b""
