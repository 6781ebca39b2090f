"""Lease of a job's leading store, and its decisions, in a Redis or Valkey that outlives the hosts of the job.

One store leads at a time: the one whose name the lease holds, a key that expires unless it is renewed. A script writes
its decisions, and fails once the lease holds another name. So a store that was cut off decides nothing any more. Redis,
with Sentinel where its own host may be lost, chooses the leader; nothing here counts votes.

LANTERNE_STORE names it: redis://[user:password@]host[:port][/db], rediss:// for TLS, or
redis+sentinel://[user:password@]host[:port],...[/name[/db]] (rediss+sentinel:// for TLS to the master).
"""

import hashlib
import hmac
import os
import secrets
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit, urlunsplit

from lanterne.errors import InputError, TransportError, Unavailable
from lanterne.transport.wire import check_token

SENTINELS = ("redis+sentinel", "rediss+sentinel")
SCHEMES = ("redis", "rediss", *SENTINELS)
EXPECTED = "host:port, redis://HOST[:PORT][/DB], rediss:// or redis+sentinel://HOST:PORT,.../NAME"
REDIS_PORT, SENTINEL_PORT, SENTINEL_NAME = 6379, 26379, "mymaster"
# The answer to a command takes less, or the server counts as unreachable for now.
ANSWER_S = 0.5
# Another store may lead so long after the last renewal. A store that was busy for longer goes on where none did.
LEASE_MS = 2000
# A store process starts within this, also on a busy machine.
START_MS = 20_000
# Decisions stay in Redis for a day after the last renewal.
KEEP_MS = 86_400_000

READ = """
local holder = redis.call('get', KEYS[1])
if not holder then return {} end
local found = redis.call('hmget', KEYS[2], 'holder', 'address')
return {holder, found[1] == holder and found[2] or ''}
"""
# A store that took the lease later has a higher term: the decisions of an older one must not replace its own.
SAVE = """
local holder, term = redis.call('get', KEYS[1]), redis.call('hget', KEYS[2], 'term')
if (holder and holder ~= ARGV[1]) or (term and tonumber(term) > tonumber(ARGV[3])) then return 0 end
redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[2])
redis.call('hset', KEYS[2], 'holder', ARGV[1], 'term', ARGV[3], 'address', ARGV[4], 'decided', ARGV[5])
redis.call('pexpire', KEYS[2], ARGV[6])
return 1
"""
RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then redis.call('del', KEYS[1], KEYS[2]) end return 1"


class LeaseUnreachable(TransportError):
    """Redis does not answer, or has no master for now."""


class Leader(NamedTuple):
    """The store that leads: its name in the lease, and its host and port; None while it starts."""

    name: str
    address: tuple[str, int] | None


class RedisLease:
    """The lease and the decisions of the job that has the token `token`, at `url`.

    Attributes: `url`; `where`, the server for errors, without a password; `host`, `port`, those of its first address;
    `bind`, the address where a store that this process starts listens, empty where it starts none; `name` of this
    process's store, once it has claimed the lease.

    Raises:
        InputError: a URL of another form.
        Unavailable: the `redis` package is not installed.
    """

    def __init__(self, url: str, token: str, bind: str = "", name: str = "") -> None:
        self.url = url
        self.bind = bind
        self.name = name
        self.address: tuple[str, int] = ("", 0)
        job = hmac.digest(check_token(token), b"redis", hashlib.sha256).hex()[:32]
        # One hash tag, so that both are on one node of a cluster.
        self._keys = (f"lanterne:{{{job}}}:lease", f"lanterne:{{{job}}}:decided")
        self.where, self.host, self.port, self._client, self._errors = _connect(url)

    # -- for those that follow a store, or start one

    def leader(self) -> Leader | None:
        """Return the store that leads; None where none does. Raises LeaseUnreachable, Unavailable."""
        found = self._run(READ)
        if not found:
            return None
        name, address = (each.decode() for each in found)
        host, _, port = address.rpartition(":")
        return Leader(name, (host, int(port)) if port else None)

    def claim(self, *, fresh: bool = False) -> bool:
        """Take the lease for a store that this process is about to start; False where another has it.

        Args:
            fresh: the job begins: decisions of one before it are void.
        """
        name = secrets.token_hex(8)
        if not self._do(lambda: self._client.set(self._keys[0], name, nx=True, px=START_MS)):
            return False
        if fresh:
            self._do(lambda: self._client.delete(self._keys[1]))
        self.name = name
        return True

    # -- for the store

    def take(self, address: tuple[str, int]) -> tuple[int, bytes]:
        """Return how many stores the job has had, and what they have decided; this one is at `address`."""
        self.address = address
        term, decided = self._do(lambda: self._client.hmget(self._keys[1], "term", "decided"))
        return (0, b"") if term is None else (int(term) + 1, decided)

    def save(self, term: int, decided: bytes) -> bool:
        """Renew the lease and write `decided`; False where another store holds the lease, or did since."""
        address = f"{self.address[0]}:{self.address[1]}"
        return bool(self._run(SAVE, self.name, LEASE_MS, term, address, decided, KEEP_MS))

    def release(self) -> None:
        """Give up the lease, and forget the decisions: the job is over."""
        self._run(RELEASE, self.name)

    def _run(self, script: str, *arguments: str | bytes | int) -> Any:
        return self._do(lambda: self._client.eval(script, len(self._keys), *self._keys, *arguments))

    def _do(self, command: Any) -> Any:
        errors = self._errors
        try:
            return command()
        except (errors.AuthenticationError, errors.NoPermissionError) as error:
            raise Unavailable(f"{self.where}: {error}; expected a user that may run scripts") from None
        except errors.RedisError as error:
            if "unknown command" in str(error).lower():
                raise Unavailable(f"{self.where}: {error}; expected a server that runs scripts") from None
            # The rest of a Sentinel's text shows its client object.
            raise LeaseUnreachable(f"it does not answer: {str(error).partition(' : <')[0]}") from None


def is_url(text: str) -> bool:
    """Return whether `text`, of LANTERNE_STORE or LANTERNE_JOIN, is a URL rather than host:port."""
    return "://" in text


def lease_of(token: str, bind: str = "") -> RedisLease | None:
    """Return the RedisLease that LANTERNE_STORE names, for the job of `token`; None where it names none."""
    url = os.environ.get("LANTERNE_STORE", "")
    return RedisLease(url, token, bind) if is_url(url) else None


def _connect(url: str) -> tuple[str, str, int, Any, Any]:
    """Return where `url` is, in words, its first host and port, a client of it, and the exceptions of that."""
    bad = InputError(f"LANTERNE_STORE: got {_shown(url)!r}, expected {EXPECTED}")
    try:
        parts = urlsplit(url)
        addresses = [urlsplit(f"//{each}") for each in parts.netloc.rpartition("@")[2].split(",")]
        usual_port = SENTINEL_PORT if parts.scheme in SENTINELS else REDIS_PORT
        hosts = [(each.hostname or "", each.port or usual_port) for each in addresses]
    except ValueError:
        raise bad from None
    if parts.scheme not in SCHEMES or not all(host for host, _ in hosts):
        raise bad
    if parts.scheme not in SENTINELS and len(hosts) > 1:
        raise bad
    try:
        import redis
        from redis import exceptions
        from redis.backoff import NoBackoff
        from redis.retry import Retry
        from redis.sentinel import Sentinel
    except ImportError:
        raise Unavailable("LANTERNE_STORE: the redis package is not installed: pip install 'lanterne[redis]'") from None
    # Whoever asks knows how long to go on: one try at a time.
    options: dict[str, Any] = {"socket_timeout": ANSWER_S, "socket_connect_timeout": ANSWER_S, "protocol": 2}
    options["retry"] = Retry(NoBackoff(), 0)
    where = f"{parts.scheme}://{','.join(f'{host}:{port}' for host, port in hosts)}{parts.path}"
    try:
        if parts.scheme not in SENTINELS:
            client = redis.Redis.from_url(url, **options)
        else:
            name, _, database = parts.path[1:].partition("/")
            user, _, password = parts.netloc.rpartition("@")[0].partition(":")
            secret = parse_qs(parts.query).get("sentinel_password", [None])[0]
            make: Any = Sentinel  # it has no types
            client = make(hosts, sentinel_kwargs={**options, "password": secret}, **options).master_for(
                unquote(name) or SENTINEL_NAME,
                db=int(database or 0),
                username=unquote(user) or None,
                password=unquote(password) or None,
                ssl=parts.scheme.startswith("rediss"),
            )
    except ValueError:
        raise bad from None
    return where, *hosts[0], client, exceptions


def _shown(url: str) -> str:
    """Return `url` without its password."""
    scheme, _, rest = url.partition("://")
    return urlunsplit((scheme, rest.rpartition("@")[2].partition("?")[0], "", "", ""))
