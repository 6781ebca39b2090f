"""Where the state of a ClosedLoop is kept for others to read: the job's own store, or a Redis server beside it."""

import logging
from typing import TYPE_CHECKING, Protocol

from lanterne.failslow.operate.redis_client import RedisKey, connect

if TYPE_CHECKING:
    from lanterne.transport.store.client import StoreClient

KEY = "lanterne/mitigation"

logger: logging.Logger = logging.getLogger(__name__)


class LoopState(Protocol):
    """Keeps what a ClosedLoop knows."""

    def set(self, value: bytes) -> None:
        """Keep the bytes `value`."""

    def close(self) -> None:
        """Release what is held."""


class RedisState:
    """A key of a Redis server.

    Args:
        url: redis://[user:password@]host[:port][/KEY], or rediss:// for TLS.

    Raises:
        InputError: another URL.
        Unavailable: the client is not installed, or nothing answers there.
    """

    def __init__(self, url: str) -> None:
        self._at: RedisKey = connect(url, KEY, "state")
        self._failed = False

    def set(self, value: bytes) -> None:
        """Keep the bytes `value`. A server that is gone by now is logged, once: the job goes on."""
        try:
            self._at.client.set(self._at.key, value)
        except self._at.errors as error:
            if not self._failed:
                logger.warning("redis: %s does not take the state any more: %s", self._at.where, error)
            self._failed = True

    def close(self) -> None:
        """Close the connection."""
        self._at.client.close()


class StoreState:
    """The same in the store of a job, a StoreClient; None: nowhere."""

    def __init__(self, store: "StoreClient | None") -> None:
        self._store = store

    def set(self, value: bytes) -> None:
        """Keep the bytes `value`."""
        if self._store is not None:
            self._store.set(KEY, value)

    def close(self) -> None:
        """The store is its job's."""
