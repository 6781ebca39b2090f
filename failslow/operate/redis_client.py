"""A client of the Redis server that a URL names, with short waits."""

from typing import Any, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from lanterne.errors import InputError, Unavailable

# A server that hangs stops nobody longer than this.
TIMEOUT_S = 2.0
SCHEMES = ("redis", "rediss")


class RedisKey(NamedTuple):
    """A key of a Redis server: `client`, the `key`, `where` the server is, in words, and its `errors`."""

    client: Any
    key: str
    where: str
    errors: type[Exception]


def connect(url: str, usual_key: str, what: str) -> RedisKey:
    """The RedisKey of redis://[user:password@]host[:port][/KEY], or rediss:// for TLS; `what` errors begin with.

    Raises:
        InputError: another URL.
        Unavailable: the client is not installed, or nothing answers there.
    """
    parts = _split(url, what)
    try:
        import redis
    except ImportError:
        raise Unavailable("redis: the client is not installed: pip install redis") from None
    where = f"{parts.hostname}:{parts.port or 6379}"
    client = redis.Redis.from_url(
        f"{parts.scheme}://{parts.netloc}", protocol=2, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S
    )
    try:
        client.ping()
    except redis.RedisError as error:
        raise Unavailable(f"redis: no answer from {where}: {error}") from None
    return RedisKey(client, unquote(parts.path[1:]) or usual_key, where, redis.RedisError)


def _split(url: str, what: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        if parts.scheme in SCHEMES and parts.hostname and parts.port != 0:
            return parts
    except ValueError:
        pass
    raise InputError(f"{what}: got {url!r}, expected redis://HOST:PORT/KEY")
