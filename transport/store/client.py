"""Client of the store: one request at a time, a timeout on every call, and a queue of notices. It has no thread."""

import errno
import hmac
import socket
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from lanterne.errors import InputError, TransportError, TransportTimeout
from lanterne.transport import wire
from lanterne.transport.machine import THIS_MACHINE, Lock, Machine
from lanterne.transport.networks import is_loopback, is_trusted
from lanterne.transport.store.connection import StoreConnection, StoreLost
from lanterne.transport.timeouts import DEFAULT_TIMEOUT_S, RETRY_S
from lanterne.transport.waiting import MOVED, Moved, wait
from lanterne.transport.wire import Kind

_REPLY_TYPES = {
    **{Kind.GET: "b", Kind.ADD: "i", Kind.DELETE: "i", Kind.GATHER: "b*"},
    **{Kind.ABSENT: "i*", Kind.END: "i", Kind.RESTART: "i"},
    **{Kind.REFUSED: "ib", Kind.MEET: "b*", Kind.GROW: "b*", Kind.APPLY: "ibb"},
}


class StoreClient:
    """Connection to the store at `address`, host and port; a forked child must open its own.

    One thread may `tell` and `pump` while another waits in a `call`.

    With `early`, wait for a store that has not started yet. Else a refused connection means that the job is over.

    Attributes: `address`; `connection`, its frames; `successor`, a function that connects, within a number of seconds,
    to the store that takes over from a lost one, or None where the job ends with its store; `machine`; `notices`, kinds
    and bodies of the frames that the store has sent unasked, oldest first.

    Raises:
        TransportTimeout: nothing answered there in time.
        TransportError: what answered does not know the job token, or refuses ours.
    """

    def __init__(
        self,
        address: tuple[str, int],
        token: str,
        timeout_s: float | None = None,
        *,
        early: bool = False,
        machine: Machine = THIS_MACHINE,
    ) -> None:
        self.address = address
        self.machine = machine
        self.notices: deque[tuple[Kind, bytes]] = deque()
        self.successor: Callable[[float], StoreClient] | None = None
        self._where = f"store {address[0]}:{address[1]}"
        self._request_id = 0
        self._receiving: Lock = machine.lock()
        self._key = wire.check_token(token)
        connected = _connect(machine, address, self._key, _limit(timeout_s), early, self._where)
        self.connection: StoreConnection = StoreConnection(machine, *connected, self._where)

    def set(self, key: str, value: bytes, timeout_s: float | None = None) -> None:
        """Store `value` under `key`."""
        self.call(Kind.SET, [_key(key), value], timeout_s, f"set {key!r}")

    def get(self, key: str, timeout_s: float | None = None) -> bytes:
        """Return the bytes under `key`, as soon as a client has set it.

        Raises:
            TransportTimeout: no client did within `timeout_s` seconds (default: LANTERNE_TIMEOUT_S, 60).
        """
        return self.call(Kind.GET, [_key(key)], timeout_s, f"get {key!r}")[0]

    def add(self, key: str, delta: int = 1, timeout_s: float | None = None) -> int:
        """Add `delta` to the number under `key` (0 if there is none) and return the sum."""
        return self.call(Kind.ADD, [_key(key), delta], timeout_s, f"add {key!r}")[0]

    def wait(self, keys: Iterable[str], timeout_s: float | None = None) -> None:
        """Return once every key of `keys` has been set."""
        deadline = self.machine.now_s() + _limit(timeout_s)
        for key in keys:
            self.get(key, max(0.0, deadline - self.machine.now_s()))

    def delete(self, key: str, timeout_s: float | None = None) -> bool:
        """Forget `key`; True if it was there."""
        return bool(self.call(Kind.DELETE, [_key(key)], timeout_s, f"delete {key!r}")[0])

    def again(self, timeout_s: float | None = None) -> "StoreClient":
        """Another connection to this store. Raises as StoreClient."""
        found = StoreClient(self.address, self._key.decode(), timeout_s, machine=self.machine)
        found.successor = self.successor
        return found

    @property
    def reached_from(self) -> str:
        """The own address by which the store was reached."""
        return str(self.connection.sock.getsockname()[0])

    def secret(self, purpose: bytes) -> bytes:
        """Return 32 bytes for `purpose`, which only holders of the job's token can make."""
        return hmac.digest(self._key, purpose, "sha256")

    def refused(self) -> str:
        """How many connections the store has refused and why, in words; empty if none."""
        count, why = self.call(Kind.REFUSED, timeout_s=1.0)
        return f"the store refused {count} connections ({why.decode()})" if count else ""

    def call(
        self,
        kind: Kind,
        fields: Iterable[int | bytes] = (),
        timeout_s: float | None = None,
        what: str | None = None,
        on_notice: Callable[[], object] | None = None,
    ) -> list[Any]:
        """Send a request and return its reply's fields. `on_notice()`, called when `notices` has grown, may raise."""
        what = what or kind.name.lower()
        limit_s = _limit(timeout_s)
        deadline = self.machine.now_s() + limit_s
        with self._receiving:
            return self._call(kind, fields, deadline, on_notice, what, limit_s)

    def _call(
        self,
        kind: Kind,
        fields: Iterable[int | bytes],
        deadline: float,
        on_notice: Callable[[], object] | None,
        what: str,
        limit_s: float,
    ) -> list[Any]:
        self._request_id = self._request_id % 0xFFFFFFFF + 1
        self.connection.send(wire.pack_frame(kind, self._request_id, fields), deadline)
        while True:
            frame = self._next_reply(deadline, on_notice)
            if frame is None:
                raise TransportTimeout(f"{self._where}: no answer to {what} within {limit_s:g} s")
            reply_kind, request_id, body = frame
            if request_id != self._request_id:
                continue  # of a request that was given up
            if reply_kind == Kind.ERROR:
                raise TransportError(
                    f"{self._where}: {what}: {wire.unpack_fields(body, 'b')[0].decode(errors='replace')}"
                )
            return wire.unpack_fields(body, _REPLY_TYPES.get(kind, ""))

    def tell(self, kind: Kind, fields: Iterable[int | bytes] = (), timeout_s: float | None = None) -> None:
        """Send a request that has no reply."""
        self.connection.send(wire.pack_frame(kind, 0, fields), self.machine.now_s() + _limit(timeout_s))

    def pump(self) -> bool:
        """Take in what has arrived, without waiting; True if `notices` has grown.

        Raises:
            TransportError: the connection to the store is lost.
        """
        if not self._receiving.acquire(blocking=False):
            return False  # Who waits for a reply takes in the notices, too.
        try:
            before = len(self.notices)
            # A reply between calls is to a call that timed out.
            while self._take_reply() or self.connection.receive():
                pass
            return len(self.notices) > before
        finally:
            self._receiving.release()

    def fileno(self) -> int:
        return self.connection.sock.fileno()

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        self.connection.close()

    def _take_reply(self) -> wire.Frame | None:
        """The first reply in the inbox, or None; notices before it go to `notices`."""
        while frame := self.connection.take():
            if frame[0] < Kind.DIED_NOTICE:
                return frame
            if frame[0] == Kind.LOST_NOTICE:
                self.connection.lose(wire.unpack_fields(frame[2], "b")[0].decode(errors="replace"))
            self.notices.append((Kind(frame[0]), frame[2]))
        return None

    def _next_reply(self, deadline: float, on_notice: Callable[[], object] | None) -> wire.Frame | None:
        """The next reply, or None at the deadline."""
        found: wire.Frame | None = None

        def look() -> bool | Moved:
            nonlocal found
            before = len(self.notices)
            found = self._take_reply()
            if found is not None:
                return True
            if len(self.notices) > before and on_notice is not None:
                on_notice()
            return MOVED if self.connection.receive() else False

        wait(look, deadline - self.machine.now_s(), self.connection.until_readable)
        return found


def _limit(timeout_s: float | None) -> float:
    return DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s


def _key(key: str) -> bytes:
    encoded = key.encode()
    if not 0 < len(encoded) <= wire.MAX_KEY_NBYTES:
        raise InputError(f"store: got a key of {len(encoded)} bytes, expected 1 to {wire.MAX_KEY_NBYTES}")
    return encoded


def _connect(
    machine: Machine, address: tuple[str, int], key: bytes, limit_s: float, early: bool, where: str
) -> tuple[socket.socket, wire.FrameSeals | None]:
    """A socket to the store, both sides having proven that they know the token. Who hangs up is tried again."""
    deadline = machine.now_s() + limit_s
    among_hosts = not is_loopback(address[0])
    sealed = among_hosts and not is_trusted()
    cure = ""
    if among_hosts:
        cure = "; expected it at an address of rank 0's host that all reach: MASTER_ADDR, or LANTERNE_BIND on rank 0"
    while True:
        try:
            sock = machine.connect(address, max(deadline - machine.now_s(), 0.001))
            try:
                seals = _shake_hands(machine, sock, key, deadline, where, sealed=sealed)
            except BaseException:
                sock.close()
                raise
            wire.configure(sock)
            return sock, seals
        except OSError as error:
            reason = error.strerror or str(error)
            if isinstance(error, ConnectionRefusedError) and not early:
                raise StoreLost(f"{where}: {reason}; the job's store has ended{cure}") from error
            if error.errno == errno.ENETUNREACH and address[0].startswith("127."):
                raise TransportError(f"{where}: {reason}; expected the loopback interface (lo) to be up") from error
            if machine.now_s() + RETRY_S > deadline:
                raise TransportTimeout(f"{where}: no connection within {limit_s:g} s: {reason}{cure}") from error
        machine.sleep(RETRY_S)


def _shake_hands(
    machine: Machine, sock: socket.socket, key: bytes, deadline: float, where: str, *, sealed: bool
) -> wire.FrameSeals | None:
    challenge = _receive_exactly(machine, sock, wire.CHALLENGE_NBYTES, deadline)
    answer, verdict, seals = wire.answer_challenge(key, challenge, sealed=sealed)
    sock.sendall(answer)
    received = _receive_exactly(machine, sock, wire.VERDICT_NBYTES, deadline)
    if received.startswith(wire.REFUSED):
        raise TransportError(f"{where}: it refuses our job token; expected LANTERNE_TOKEN to be the same on all ranks")
    if not hmac.compare_digest(received, verdict):
        raise TransportError(f"{where}: what answers there does not know the job token")
    return seals


def _receive_exactly(machine: Machine, sock: socket.socket, nbytes: int, deadline: float) -> bytes:
    data = b""
    while len(data) < nbytes:
        sock.settimeout(max(deadline - machine.now_s(), 0.001))
        part = sock.recv(nbytes - len(data))
        if not part:
            raise ConnectionResetError("it hung up")
        data += part
    return data
