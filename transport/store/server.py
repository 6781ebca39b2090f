"""The store: a job's small key-value service, meeting point and membership list, in a process of its own.

`python -m lanterne.transport.store.server` prints its port on standard output and serves from one thread until its
owner closes its standard input (`--until owner`) or its last client is gone (`--until members`), so it never outlives
its job. The token comes in LANTERNE_TOKEN. HANDLERS lists the services, a class for each;
the membership of the job is one more.

door.py keeps unauthenticated clients out. Clients are bounded in number and in unread bytes.
"""

import argparse
import heapq
import itertools
import os
import resource
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from lanterne.errors import LanterneError
from lanterne.transport import wire
from lanterne.transport.door import Door
from lanterne.transport.machine import THIS_MACHINE, Machine
from lanterne.transport.store.board_handler import Board
from lanterne.transport.store.connection import CUT
from lanterne.transport.store.decision_log import Decisions, Lease
from lanterne.transport.store.handler import Answer, Connection, Handler, Refusal, Service
from lanterne.transport.store.membership.members import Members
from lanterne.transport.store.redis_lease import RedisLease
from lanterne.transport.store.values import KeyValues
from lanterne.transport.tcp_info import tcp_info

HANDLERS: tuple[Callable[[Service], Handler], ...] = (KeyValues, Board)
# A rank and its guard each: jobs of 4,096 ranks.
MAX_CLIENTS = 8192
# A gather of the largest size, for a client that sleeps.
MAX_OUTBOX_NBYTES = 256 << 20
# After a frame the store polls this long before it sleeps: the next one often follows at once, and waking costs more
# than a frame.
SPIN_S = 100e-6
# With --until members: how long to wait for the first client, and for another one after the last has gone.
FIRST_CLIENT_S, LINGER_S = 120.0, 1.0


def _loss(error: OSError, clients: Iterable[Connection], lost: Connection) -> str:
    """Return how connection `lost` ended, and whether every other host is as silent as its own."""
    what = "its connection was lost: " + (error.strerror or str(error)).lower()
    if error.errno not in CUT:
        return what
    for each in clients:
        with suppress(OSError):  # it is lost as well
            if each is not lost and each.sock.getpeername()[0] != each.sock.getsockname()[0]:
                found = tcp_info(each.sock)
                if not found.probes and not found.resent:
                    return what
    return f"{what}; no other host answers either, so its host or that of the store is cut off"


class _Time:
    """Lifetime of a store: `until` its "owner" ends, or its last "members" have left and none joins.

    Args:
        owner: a file descriptor that reaches its end with the owner, watched by `selector`.
        is_alone: returns whether the store has no clients.

    Attributes: `is_over`.
    """

    def __init__(
        self, until: str, owner: int | None, selector: selectors.BaseSelector, is_alone: Callable[[], bool]
    ) -> None:
        self.until = until
        self.is_over = False
        self._selector = selector
        self._is_alone = is_alone
        if owner is not None:
            selector.register(owner, selectors.EVENT_READ, lambda _events: self._hear(owner))

    def _hear(self, owner: int) -> None:
        if not os.read(owner, 1024):
            self._selector.unregister(owner)
            self.is_over = self.is_over or self.until == "owner" or self._is_alone()

    def end_if_alone(self) -> None:
        self.is_over = self.is_over or self._is_alone()


class Store:
    """Server: connections, frames and timers.

    Args:
        owner: a file descriptor that reaches its end with the owner.
        lease: the job's, which outlives this store; None: the job ends with this store.
    """

    def __init__(
        self,
        listener: socket.socket,
        token: str,
        until: str = "owner",
        owner: int | None = None,
        machine: Machine = THIS_MACHINE,
        lease: Lease | None = None,
    ) -> None:
        self.machine = machine
        self._selector = machine.selector()
        self._clients: dict[Connection, None] = {}  # in the order of their connections
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._timer_count = itertools.count()
        self._listener = listener
        has_room = lambda: len(self._clients) < MAX_CLIENTS  # noqa: E731
        self._door = Door([listener], token, machine, selector=self._selector, has_room=has_room)
        self._time = _Time(until, owner, self._selector, lambda: not self._clients)
        self._routes: dict[int, tuple[str, Callable[..., Answer]]] = {}
        self.route(wire.Kind.REFUSED, "", self._tell_refused)
        term, decided = lease.take(listener.getsockname()[:2]) if lease else (0, b"")
        self._decisions = Decisions(self, lease, term, decided)
        self.term: int = self._decisions.term
        self.members: Members = Members(self, self._decisions)
        self.handlers: list[Handler] = [self.members, *(handler(self) for handler in HANDLERS)]
        if until == "members":
            self.after(FIRST_CLIENT_S, self._time.end_if_alone)

    def route(self, kind: wire.Kind, types: str, function: Callable[..., Answer]) -> None:
        """Answer `kind` by function(connection, request_id, *fields): the reply's fields, or None: later."""
        self._routes[kind] = (types, function)

    def after(self, delay_s: float, function: Callable[[], object]) -> None:
        """Call `function` in `delay_s` seconds."""
        heapq.heappush(self._timers, (self.machine.now_s() + delay_s, next(self._timer_count), function))

    def run(self) -> None:
        """Serve until the store's time is over."""
        spin_until = 0.0
        while True:
            now = self.machine.now_s()
            while self._timers and self._timers[0][0] <= now:
                heapq.heappop(self._timers)[2]()
            if self._time.is_over:
                break
            for sock, _, seals in self._door.take():
                self._welcome(sock, seals)
            limits_s = [max(0.0, self._timers[0][0] - now)] if self._timers else []
            limits_s += [] if self._door.patience_s is None else [self._door.patience_s]
            timeout_s = min(limits_s, default=None)
            events = self._selector.select(0 if now < spin_until else timeout_s)
            if not events:
                self.machine.give_way()
                continue
            for key, mask in events:
                key.data(mask)
            spin_until = self.machine.now_s() + SPIN_S
        self._decisions.close()
        self._door.close()
        for connection in self._clients:
            connection.sock.close()
        self._listener.close()
        self._selector.close()

    def send(
        self, connection: Connection, kind: wire.Kind, request_id: int, fields: Iterable[int | bytes] = ()
    ) -> None:
        """Queue a frame; a client that reads too slowly for its own good is dropped."""
        if connection.sock.fileno() < 0:
            return
        frame = wire.pack_frame(kind, request_id, fields)
        connection.outbox += frame + connection.seals.out.of_frame(frame) if connection.seals else frame
        self._flush(connection)

    def reply(self, connection: Connection, request_id: int, fields: Iterable[int | bytes] = ()) -> None:
        """Queue the reply to a request."""
        self.send(connection, wire.Kind.REPLY, request_id, fields)

    def _tell_refused(self, *_: object) -> Answer:
        return [self._door.refused.total(), wire.in_words(self._door.refused).encode()]

    def _welcome(self, sock: socket.socket, seals: wire.FrameSeals | None) -> None:
        """Serve an authenticated client."""
        wire.configure(sock)
        connection = Connection(sock, seals)
        self._clients[connection] = None
        self._selector.register(sock, selectors.EVENT_READ, lambda events: self._serve(connection, events))

    def _serve(self, connection: Connection, events: int) -> None:
        if connection.sock.fileno() < 0:
            return
        if events & selectors.EVENT_WRITE:
            self._flush(connection)
        if not events & selectors.EVENT_READ or connection.sock.fileno() < 0:
            return
        try:
            data = connection.sock.recv(1 << 16)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        except OSError as error:
            connection.lost = _loss(error, self._clients, connection)
            data = b""
        connection.inbox += data
        try:
            if not data or not self._consume(connection):
                self._drop(connection)
        except wire.WireError:
            self._drop(connection)

    def _consume(self, connection: Connection) -> bool:
        """Act on what has arrived; False if the connection is to end."""
        while connection.sock.fileno() >= 0 and (frame := wire.take_frame(connection.inbox, connection.seals)):
            if frame[0] not in self._routes:
                return False
            self._answer(connection, frame)
        return True

    def _answer(self, connection: Connection, frame: wire.Frame) -> None:
        kind, request_id, body = frame
        types, function = self._routes[kind]
        try:
            fields = function(connection, request_id, *wire.unpack_fields(body, types))
        except Refusal as error:
            self.send(connection, wire.Kind.ERROR, request_id, [str(error).encode()])
            return
        if fields is not None:
            self.reply(connection, request_id, fields)

    def lose(self, why: str) -> None:
        """Send the reason to the clients, and end: this store leads no more."""
        for connection in self._clients:
            self.send(connection, wire.Kind.LOST_NOTICE, 0, [why.encode()])
        self._time.is_over = True

    def _flush(self, connection: Connection) -> None:
        try:
            while connection.outbox:
                del connection.outbox[: connection.sock.send(connection.outbox)]
        except BlockingIOError:
            pass
        except OSError:
            self.after(0, lambda: self._drop(connection))
            connection.outbox.clear()
        if len(connection.outbox) > MAX_OUTBOX_NBYTES:
            self.after(0, lambda: self._drop(connection))
        key = self._selector.get_key(connection.sock)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.outbox else 0)
        if key.events != events:
            self._selector.modify(connection.sock, events, key.data)

    def _drop(self, connection: Connection) -> None:
        if connection.sock.fileno() < 0:
            return
        self._selector.unregister(connection.sock)
        connection.sock.close()
        if connection not in self._clients:
            return
        del self._clients[connection]
        for handler in self.handlers:
            handler.connection_closed(connection)
        if not self._clients and self._time.until == "members":
            # After the end of the job another one may want the port at once. Else more ranks may join.
            over = connection.rank is not None and self.members.epoch.all_came
            self.after(0.0 if over else LINGER_S, self._time.end_if_alone)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lanterne.transport.store.server", description=str(__doc__).split("\n", 1)[0]
    )
    parser.add_argument(
        "--bind", default="127.0.0.1", help="the address to listen on, and on no other (default: %(default)s)"
    )
    parser.add_argument("--port", type=int, default=0, help="default: any free one")
    parser.add_argument("--until", choices=["owner", "members"], default="owner", help="whose end ends the store")
    parser.add_argument("--lease", default="", help="name of this store in the lease that LANTERNE_STORE keeps")
    args = parser.parse_args(argv)
    # Ctrl-C is the launcher's to handle; the store goes when its owner or its clients have gone.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(2 * MAX_CLIENTS, hard)), hard))
    try:
        listener = THIS_MACHINE.listen(args.bind, args.port)
        token, owner = os.environ.get("LANTERNE_TOKEN", ""), sys.stdin.fileno()
        lease = RedisLease(os.environ["LANTERNE_STORE"], token, name=args.lease) if args.lease else None
        store = Store(listener, token, args.until, owner, lease=lease)
        said = str(listener.getsockname()[1])
    except (OSError, LanterneError) as error:
        store, said = None, f"error {getattr(error, 'strerror', None) or error}"
    try:
        print(said, flush=True)
    except BrokenPipeError:  # The owner was interrupted meanwhile.
        store = None
    # The reader of the port may close its end: nothing else is ever written there.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if store is None:
        return 1
    store.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
