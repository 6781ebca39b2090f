"""Where the state of a ClosedLoop is kept for others to read: the job's own store, or a Redis server beside it."""

import logging
from typing import TYPE_CHECKING, Protocol
from urllib.parse import SplitResult, unquote, urlsplit

from lanterne.errors import InputError, Unavailable

if TYPE_CHECKING:
    from lanterne.transport.store.client import StoreClient

KEY = "lanterne/mitigation"
# A server that hangs stops a job no longer than this.
TIMEOUT_S = 2.0

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
        parts = _split(url)
        try:
            import redis
        except ImportError:
            raise Unavailable("redis: the client is not installed: pip install redis") from None
        self._failed = False
        self._errors: type[Exception] = redis.RedisError
        self.key: str = unquote(parts.path[1:]) or KEY
        self._where = f"{parts.hostname}:{parts.port or 6379}"
        self._client = redis.Redis.from_url(
            f"{parts.scheme}://{parts.netloc}", protocol=2, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S
        )
        try:
            self._client.ping()
        except redis.RedisError as error:
            raise Unavailable(f"redis: no answer from {self._where}: {error}") from None

    def set(self, value: bytes) -> None:
        """Keep the bytes `value`. A server that is gone by now is logged, once: the job goes on."""
        try:
            self._client.set(self.key, value)
        except self._errors as error:
            if not self._failed:
                logger.warning("redis: %s does not take the state any more: %s", self._where, error)
            self._failed = True

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


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


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        if parts.scheme in ("redis", "rediss") and parts.hostname and parts.port != 0:
            return parts
    except ValueError:
        pass
    raise InputError(f"state: got {url!r}, expected redis://HOST:PORT/KEY")
