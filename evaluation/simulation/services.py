"""What simulated ranks, their guards and strangers ask of the store, each with what must come of it."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from evaluation.simulation.calls import RankOutcome
from evaluation.simulation.seats import CLEAR_S, Player, SeatLog, make_play
from lanterne.errors import InputError, LanterneError, TransportError, TransportTimeout
from lanterne.transport import wire
from lanterne.transport.machine import Machine
from lanterne.transport.rank_group import Group
from lanterne.transport.store.client import StoreClient
from lanterne.transport.store.connection import StoreLost
from lanterne.transport.store.membership.members import Members
from lanterne.transport.wire import MAX_KEY_NBYTES, Kind, pack_ranks

# A get that nobody answers; a rank sets a key after so long at most.
SHORT_S, LATER_S = 0.05, 0.3


@dataclass
class SimulatedJob:
    """What all processes of a simulated job have in common: where the store is, and what is told of guards."""

    address: tuple[str, int]
    token: str
    machine: Machine
    timeout_s: float
    seed: int
    ranks: int
    calm: bool  # nothing befalls anybody
    # Ranks whose guard is there, and so may have started them.
    guarded: set[int] = field(default_factory=set)
    # By rank, of those whose guard said so: when, exit code.
    ended: dict[int, tuple[float, int]] = field(default_factory=dict)
    watch: "WatchLog | None" = None
    # The store's own.
    members: Members | None = None

    def connect(self, *, early: bool = True) -> StoreClient:
        """A client of the store, which, if `early`, may not have begun."""
        return StoreClient(self.address, self.token, self.timeout_s, early=early, machine=self.machine)

    def has_joined(self, rank: int) -> bool:
        """Whether the store knows what has become of `rank`."""
        return self.members is not None and self.members.epoch.knows(rank)


@dataclass
class StoreCall:
    """A call of a rank: `group`, of the job; what it gets goes to `outcome`."""

    job: SimulatedJob
    group: Group
    number: int
    kind: str
    count: int
    outcome: RankOutcome
    logs: dict[int, SeatLog]

    @property
    def store(self) -> StoreClient:
        assert self.group.store is not None
        return self.group.store

    @property
    def random(self) -> random.Random:
        """The same on all ranks, each time anew."""
        return random.Random(f"{self.job.seed} {self.number}")

    def expect(self, what: str, got: object, expected: object) -> None:
        """Note what is not as it must be."""
        if got != expected:
            self.outcome.wrong.append(f"call {self.number}, {self.kind}: {what}: got {got!r}, expected {expected!r}")

    @contextmanager
    def refused(self, what: str, expected: str, error: type[LanterneError] = TransportError) -> Iterator[None]:
        """What is done here is to raise `error`, which says `expected`.

        What befell this rank or the store may also have ended the connection, or a wait: that is no answer of the
        store's, and is raised, to be judged as any other error.
        """
        try:
            yield
        except error as found:
            if isinstance(found, StoreLost | TransportTimeout) and error is TransportError and not self.job.calm:
                raise
            if expected not in str(found):
                self.expect(what, str(found), expected)
        else:
            self.expect(what, "no error", expected)


def _values(service: StoreCall) -> None:
    """What a rank sets, adds and deletes under keys of its own it gets, as of a dict."""
    store, rng = service.store, random.Random(f"{service.job.seed} {service.number} {service.group.rank}")
    known: dict[str, bytes] = {}
    for step in range(4 + service.count % 9):
        key = f"own/{service.number}/{service.group.rank}/{rng.randrange(3)}"
        verb = rng.choice(("set", "get", "add", "delete"))
        if verb == "set":
            known[key] = str(rng.randrange(1000)).encode() * rng.choice((1, 1, 400))
            store.set(key, known[key])
        elif verb == "delete":
            service.expect("delete", store.delete(key), known.pop(key, None) is not None)
        elif verb == "add" and len(known.get(key, b"")) < 5:
            known[key] = str(int(known.get(key, b"0")) + step).encode()
            service.expect("add", store.add(key, step), int(known[key]))
        elif verb == "get" and key in known:
            service.expect("get", store.get(key), known[key])
        elif verb == "get":
            began_s = service.job.machine.now_s()
            with service.refused("get of what is not there", "no answer to get", TransportTimeout):
                store.get(key, SHORT_S)
            if service.job.machine.now_s() > began_s + 1.0 and service.job.calm:
                service.expect("get", "a wait of over a second", f"{SHORT_S:g} s")


def _waited(service: StoreCall) -> None:
    """All ranks wait for a key that one sets later, some after they have given up once."""
    store, machine, rank = service.store, service.job.machine, service.group.rank
    key, other = f"waited/{service.number}", f"waited/{service.number}/{service.group.rank}"
    if rank == service.number % service.job.ranks:
        machine.sleep(service.random.uniform(0, LATER_S))
        store.set(key, b"here")
    else:
        try:
            if rank % 3 == 1:
                try:
                    service.expect("get", store.get(key, SHORT_S / 10), b"here")
                except TransportTimeout:
                    store.set(other, b"x")
                    service.expect("get of another", store.get(other), b"x")
            elif rank % 3 == 2:
                store.wait([key], 3 * LATER_S)
            service.expect("get", store.get(key, 3 * LATER_S), b"here")
        except TransportTimeout as error:
            if service.job.calm:
                service.expect("get", str(error), "here")
    service.group.barrier()


def _added(service: StoreCall) -> None:
    """All ranks add to one number."""
    store, group = service.store, service.group
    sums = [store.add(f"sum/{service.number}", group.rank + 1) for _ in range(3)]
    service.expect("sums that rise", sums, sorted(sums))
    told = group.exchange(f"sums/{service.number}", ",".join(map(str, sums)).encode())
    every = [int(text) for each in told for text in each.split(b",")]
    service.expect("sums of all ranks", len(set(every)), 3 * service.job.ranks)
    service.expect("sum", max(every), 3 * sum(range(1, service.job.ranks + 1)))


def _exchange(service: StoreCall) -> None:
    """Every rank gives bytes, and gets those of all."""
    group = service.group
    give = lambda rank: bytes([rank]) * (service.count * (1 + rank % 3))  # noqa: E731
    got = group.exchange(f"exchange/{service.number}", give(group.rank))
    service.expect("exchange", got, [give(rank) for rank in range(service.job.ranks)])
    service.expect("secret", len(group.secret(b"x")), 32)
    group.barrier()


def _meet(service: StoreCall) -> None:
    """All ranks meet, and one that asks again hears the same."""
    ranks, rank, name = range(service.job.ranks), service.group.rank, f"meet/{service.number}"
    service.job.machine.sleep(random.Random(f"{service.job.seed} {service.number} {rank}").uniform(0, LATER_S))
    for payload in (b"first", b"again"):
        if payload == b"again" and rank != service.number % service.job.ranks:
            break
        got = service.group.survivors(name, ranks, (), payload, service.job.timeout_s)
        if service.job.calm:
            service.expect("meeting", sorted(got), list(ranks))
        service.expect("what ranks brought", set(got.values()), {b"first"})
    service.group.barrier()


def _refusals(service: StoreCall) -> None:
    """Requests that cannot be are refused, each for its reason, and nothing else changes."""
    job, rank, size = service.job, service.group.rank, service.job.ranks
    over = b"k" * (MAX_KEY_NBYTES + 1)
    number = f"text/{service.number}/{rank}".encode()
    board = f"board/{service.number}/{rank}".encode()
    service.store.set(number.decode(), b"many")
    service.store.set(f"big/{rank}", str(2**63 - 1).encode())
    joined: list[tuple[Kind, list[int | bytes], str]] = [
        (Kind.JOIN, [rank, size], "second rank"),
        (Kind.SET, [over, b""], "got a key of"),
        (Kind.ADD, [number, 1], "its value is no number"),
        (Kind.ADD, [f"big/{rank}".encode(), 1], "does not fit 64 bits"),
        (Kind.ENDED, [rank, 0, b""], "not its guard"),
        (Kind.GATHER, [b"big", bytes(wire.MAX_BODY_NBYTES // 2 // size + 1)], "bytes from each rank"),
        (Kind.ARRIVE, [over, rank, size, 1, b"", b"1.0", 1, 0, b""], "too long a text"),
        (Kind.ARRIVE, [board, rank, size, 1, over, b"1.0", 1, 0, b""], "too long a text"),
        (Kind.ARRIVE, [board, rank, size, 1, b"", b"soon", 1, 0, b""], "could not convert"),
        (Kind.ARRIVE, [board, size, size, 1, b"", b"1.0", 1, 0, b""], f"the arrival of rank {size}"),
        (Kind.ARRIVE, [board, 0, 0, 1, b"", b"1.0", 1, 0, b""], "the arrival of rank 0 of 0"),
        (Kind.REPORT, [board, rank, size, 0, b"0 " + over], "got the arrival"),
        (Kind.ARRIVE, [board, rank, size + 1, 1, b"", b"1.0", 1, 0, b""], "which it is not"),
        (Kind.MEET, [over, pack_ranks([rank]), b"", b"", 1], "too long a name"),
        (Kind.MEET, [b"m", pack_ranks([rank]), b"", b"", -1], "too long a name"),
        (Kind.MEET, [b"m", pack_ranks([size]), b"", b"", 1], "a meeting of other ranks"),
    ]
    # Of who has not joined.
    stranger: list[tuple[Kind, list[int | bytes], str]] = [
        (Kind.JOIN, [rank, 0], "a world of 0 ranks, expected 1 to"),
        (Kind.JOIN, [rank, size + 1], "as on the other ranks"),
        (Kind.JOIN, [size, size], f"got rank {size}, expected 0 to"),
        (Kind.JOIN, [rank, size], f"got rank {rank}"),
        (Kind.LEAVE, [], "has not joined"),
        (Kind.END, [1], "has not joined"),
        (Kind.GATHER, [b"g", b""], "has not joined"),
        (Kind.MEET, [b"m", pack_ranks([rank]), b"", b"", 1], "has not joined"),
    ]
    for kind, fields, why in joined:
        with service.refused(f"{kind.name} {fields}"[:80], why):
            service.store.call(kind, fields, job.timeout_s)
    with service.refused("a key that is too long", "expected 1 to", InputError):
        service.store.set(over.decode(), b"")
    client = job.connect()
    try:
        for kind, fields, why in stranger:
            with service.refused(f"{kind.name} {fields}"[:80], why):
                client.call(kind, fields, job.timeout_s)
    finally:
        client.close()
    service.expect("what a stranger did", service.group.exchange(f"refused/{service.number}", b"x"), [b"x"] * size)


def _strangers(service: StoreCall) -> None:
    """Who does not know the token, or does not speak the language, is let go; the store counts and goes on."""
    job = service.job
    with service.refused("a wrong token", "refuses our job token"):
        StoreClient(job.address, job.token[::-1], job.timeout_s, machine=job.machine).close()
    for said in (b"", b"garbage" * 40, wire.MAGIC):
        with job.machine.connect(job.address, job.timeout_s) as sock:
            _hear(sock, wire.CHALLENGE_NBYTES)
            if said:
                sock.sendall(said)
                _hear(sock, wire.VERDICT_NBYTES if len(said) >= wire.ANSWER_NBYTES else 0)
    for frame in (wire.pack_frame(99, 1), wire.HEADER.pack(wire.MAX_BODY_NBYTES + 1, Kind.GET, 1)):
        client = job.connect()
        client.connection.sock.settimeout(job.timeout_s)
        client.connection.sock.sendall(frame)
        service.expect("an answer to what is no request", _hear(client.connection.sock, 1), b"")
        client.close()
    service.expect("refused", "wrong secret" in service.store.refused(), True)
    service.group.barrier()


def _hear(sock: Any, nbytes: int) -> bytes:
    """What a socket says, so many bytes or less where it ends."""
    data = b""
    while len(data) < nbytes:
        try:
            part = sock.recv(nbytes - len(data))
        except (TimeoutError, ConnectionError):
            break
        if not part:
            break
        data += part
    return data


def _seats(service: StoreCall) -> None:
    """Ranks come to calls; see seats.py."""
    group, job = service.group, service.job
    others = [rank for rank in range(job.ranks) if rank != group.rank]
    log = service.logs[group.rank] = SeatLog()
    seat = group.open_board(f"seats/{service.number}", group.rank, job.ranks)
    assert seat is not None
    player = Player(seat, group.rank, job.machine, job.timeout_s, lambda: group.check_peers(others), log)
    player.play(make_play(f"{job.seed} {service.number}", job.ranks, service.count))
    group.barrier()


def _nothing(service: StoreCall) -> None:
    """Of the whole job: see World."""
    service.group.barrier()


SERVICES: dict[str, Callable[[StoreCall], None]] = {
    "values": _values,
    "waited": _waited,
    "added": _added,
    "exchange": _exchange,
    "meet": _meet,
    "refusals": _refusals,
    "strangers": _strangers,
    "seats": _seats,
    "guards": _nothing,
    "end": _nothing,
}


# -- guards, and who watches


@dataclass
class WatchLog:
    """What a watcher was told: notices, in order; since when it listens."""

    since_s: float = 0.0
    ended: list[tuple[int, int, bytes]] = field(default_factory=list)
    died: list[int] = field(default_factory=list)
    faults: list[bytes] = field(default_factory=list)
    is_over: bool = False


def guard(
    job: SimulatedJob,
    rank: int,
    begin: Callable[[], object],
    state: Callable[[], tuple[int, str] | None],
    problems: list[str],
) -> None:
    """The process that starts `rank` (`begin`), and tells how it ended: (exit code, why), once `state` says so."""
    client = job.connect()
    client.call(Kind.GUARD, [rank, job.ranks, 0], job.timeout_s)
    job.guarded.add(rank)
    begin()
    with_fault = rank % 4 == 1
    if with_fault:
        client.call(Kind.FAULT, [3, f"fault of rank {rank}".encode()], job.timeout_s)
    while (ended := state()) is None:
        job.machine.sleep(0.01)
    code, reason = ended
    job.ended[rank] = job.machine.now_s(), code
    client.call(Kind.ENDED, [rank, code, reason.encode()], job.timeout_s)
    while not _is_told(client, Kind.FINISHED_NOTICE):
        job.machine.sleep(0.01)
    if len(job.ended) < job.ranks:
        problems.append(f"guards: that of rank {rank} was told that all had ended, of {sorted(job.ended)}")
    client.close()


def _is_told(client: StoreClient, kind: Kind) -> bool:
    client.pump()
    while client.notices:
        if client.notices.popleft()[0] == kind:
            return True
    return False


def watcher(job: SimulatedJob, is_over: Callable[[], bool]) -> None:
    """The launcher: it hears of all ends."""
    client = job.connect()
    job.watch = log = WatchLog()
    client.call(Kind.WATCH, (), job.timeout_s)
    log.since_s = job.machine.now_s()
    late: StoreClient | None = None
    while not is_over():
        job.machine.sleep(0.02)
        client.pump()
        if late is None and job.machine.now_s() > log.since_s + 0.1:
            late = job.connect()
            late.call(Kind.WATCH, (), job.timeout_s)
    job.machine.sleep(CLEAR_S)  # What was said of the last end is under way.
    for each in (client, late):
        if each is not None:
            _take_notices(each, log if each is client else WatchLog(), log)
            each.close()
    log.is_over = True


def _take_notices(client: StoreClient, log: WatchLog, first: WatchLog) -> None:
    client.pump()
    for kind, body in client.notices:
        if kind == Kind.ENDED_NOTICE:
            rank, code, reason = wire.unpack_fields(body, "iib")
            log.ended.append((rank, code, reason))
        elif kind == Kind.DIED_NOTICE:
            log.died.append(wire.unpack_fields(body, "ib")[0])
        elif kind == Kind.FAULT_NOTICE:
            first.faults.append(wire.unpack_fields(body, "ib")[1])


def judge_guards(job: SimulatedJob) -> Iterator[str]:
    """What is wrong with what the watcher heard of the guards, a line each."""
    log = job.watch
    if log is None or not log.is_over:
        return
    for rank, (at_s, code) in job.ended.items():
        told = [each[1] for each in log.ended if each[0] == rank]
        if told != [code] and (told or at_s > log.since_s):
            yield f"the watcher was told of the ends {told} of rank {rank}, expected [{code}]"
        if code == 0 and rank in log.died:
            yield f"the watcher was told that rank {rank} has died, which ended in order"
    expected = any(rank % 4 == 1 for rank in job.ended)
    if expected and (len(set(log.faults)) != 1 or len(log.faults) > 2):
        yield f"the watchers were told of the faults {log.faults}, expected one, the same"
