"""Connections to the store of a job, wherever it is: at host:port, or at the address that a lease in Redis says."""

from contextlib import ExitStack
from functools import partial

from lanterne.errors import InputError, TransportTimeout, Unavailable
from lanterne.transport.machine import THIS_MACHINE
from lanterne.transport.store.client import StoreClient
from lanterne.transport.store.connection import StoreLost
from lanterne.transport.store.decision_log import PATIENCE_S
from lanterne.transport.store.process import StoreProcess
from lanterne.transport.store.redis_lease import LeaseUnreachable, RedisLease, is_url
from lanterne.transport.timeouts import DEFAULT_TIMEOUT_S, RETRY_S

# A store that is there lets a client in within this.
CONNECT_S = 2.0


def port_of(name: str, text: str) -> int:
    """Return the port that `text`, of the variable `name`, says. Raises InputError."""
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 16):
        raise InputError(f"{name}: got port {text!r}, expected 1 to 65535")
    return int(text)


def connect_to(store: str, token: str, timeout_s: float | None = None, bind: str = "") -> StoreClient:
    """Connect to the store at `store`, host:port or a URL of Redis; `bind` as of RedisLease.

    Raises: as StoreClient and RedisLease.
    """
    if is_url(store):
        return follow(RedisLease(store, token, bind), token, timeout_s)
    host, _, port = store.rpartition(":")
    return StoreClient((host, port_of("LANTERNE_STORE", port)), token, timeout_s)


def begin(lease: RedisLease, token: str, bind: str, until: str, timeout_s: float | None = None) -> StoreProcess:
    """Start the first store of a job, once a job before it that has the same token is over.

    Raises:
        Unavailable: another job keeps the lease, or Redis does not answer.
    """
    limit_s = DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s
    until_s = THIS_MACHINE.now_s() + limit_s
    while True:
        try:
            if lease.claim(fresh=True):
                return StoreProcess(token, bind, until=until, lease=lease)
            why = "another job with this LANTERNE_TOKEN runs; expected one of its own for each job"
        except LeaseUnreachable as error:
            why = str(error)
        if THIS_MACHINE.now_s() + RETRY_S > until_s:
            raise Unavailable(f"LANTERNE_STORE: {lease.where}: no lease within {limit_s:.3g} s: {why}")
        THIS_MACHINE.sleep(RETRY_S)


def follow(lease: RedisLease, token: str, timeout_s: float | None = None, lost: str = "") -> StoreClient:
    """Connect to the store that leads; start one where the one named `lost` does no more and this process may.

    Raises:
        TransportTimeout: none leads in time, or Redis does not answer.
        Unavailable: Redis refuses this user, or runs no scripts.
    """
    limit_s = DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s
    began_s = reached_s = THIS_MACHINE.now_s()
    until_s = began_s + limit_s
    with ExitStack() as started:  # A store that this process has started would end without its owner or a client.
        while True:
            now_s, why = THIS_MACHINE.now_s(), "no store has started"
            try:
                leader, reached_s = lease.leader(), now_s
                if leader is None and lost and lease.bind and lease.claim():
                    started.enter_context(_start(lease, token))
                    leader = lease.leader()
                if leader is not None and leader.name == lost:
                    why = "the store that was lost still leads there"
                elif leader is not None and leader.address is not None:
                    client = StoreClient(leader.address, token, max(0.0, min(until_s - now_s, CONNECT_S)))
                    client.connection.advice = ""
                    client.successor = partial(follow, lease, token, lost=leader.name)
                    return client
            except (LeaseUnreachable, StoreLost, TransportTimeout) as error:
                why = str(error)
            if now_s + RETRY_S > until_s or (lost and now_s > reached_s + PATIENCE_S):
                raise TransportTimeout(f"LANTERNE_STORE: {lease.where}: no store within {now_s - began_s:.3g} s: {why}")
            THIS_MACHINE.sleep(RETRY_S)


def _start(lease: RedisLease, token: str) -> StoreProcess:
    """Start a store here. Raises TransportTimeout where it cannot lead: another host may be able to."""
    try:
        return StoreProcess(token, lease.bind, until="members", lease=lease)
    except Unavailable as error:
        raise TransportTimeout(str(error)) from error
