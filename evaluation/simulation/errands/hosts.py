"""Errands of stores of several hosts: what they ask each other, what an elector takes, and who leads after a loss."""

from collections.abc import Collection, Sequence
from math import inf

from evaluation.simulation.baton import Actor
from evaluation.simulation.errands.errand import ASKER, HOST, PORT, TOKEN, Errand, Puppet
from lanterne.transport.store.fellows import FellowStores
from lanterne.transport.store.heirs import POLICY
from lanterne.transport.store.meeting_names import to_shrink
from lanterne.transport.store.succession import LEAST_ELECTORS
from lanterne.transport.wire import Kind, pack_frame, pack_ranks, unpack_ranks

RESTS_S, CONNECT_S, ANSWER_S = 1.5, 0.25, 0.5
MEETS_S = 1.0


def _name(port: int) -> str:
    return f"{HOST}:{port}"


def fellows(errand: Errand) -> None:
    """Stores are asked at once, over one connection each; one that says nothing rests, and costs no time till then."""
    rng, machine = errand.rng, errand.machine
    ports = [PORT + index for index in range(rng.randint(1, 4))]
    how = {port: rng.choice(("lives", "lives", "ended", "cut off", "dies")) for port in ports}
    stores = {port: errand.start_store(port=port) for port in ports if how[port] != "ended"}
    keepers = [errand.puppet("a client", port) for port in stores]
    found = FellowStores(machine, TOKEN, RESTS_S)
    for port, store in stores.items():
        if how[port] == "cut off":
            machine.network.cut(ASKER, store.name, inf)

    def ask(expected: Collection[int], least_s: float, most_s: float) -> None:
        began_s = machine.now_s()
        names = map(_name, ports)
        answers = found.ask_all(names, Kind.REFUSED, lambda _name: (), CONNECT_S, ANSWER_S).wait()
        got = {port for port in ports if answers[_name(port)] is not None}
        errand.expect("which stores answer", got, {*expected})
        took_s = machine.now_s() - began_s
        if not least_s <= took_s <= most_s:
            errand.problems.append(f"an answer of {how} after {took_s:g} s, expected {least_s:g} to {most_s:g}")

    alive = {port for port in ports if how[port] in ("lives", "dies")}
    is_cut = "cut off" in how.values()
    ask(alive, CONNECT_S * is_cut, CONNECT_S + 0.1 if is_cut else 0.1)
    errand.expect("who says nothing", found.silent, {_name(port) for port in ports if how[port] == "cut off"})
    ask(alive, 0.0, 0.1)
    errand.expect("to whom there are connections", {port for port in ports if _name(port) in found}, alive)
    opened = [sock for sock in machine.network.by_fd.values() if sock.owner.name == ASKER]
    errand.expect("connections that are open", len(opened), len(alive) + len(keepers))
    for port in [port for port in ports if how[port] == "dies"]:
        errand.end(stores[port])
    machine.network.cuts.clear()
    alive = {port for port in ports if how[port] == "lives"}
    ask(alive, 0.0, 0.1)
    found.rouse() if rng.random() < 0.5 else machine.sleep(RESTS_S)
    ask(alive | {port for port in ports if how[port] == "cut off"}, 0.0, 0.1)
    found.close()


class _Elector:
    """What one has promised and taken, by the rules of Paxos."""

    def __init__(self) -> None:
        self.promised: tuple[int, bytes] = (-1, b"")
        self.written: tuple[int, bytes] = (-1, b"")
        self.log: list[bytes] = []


def elector(errand: Errand) -> None:
    """A store that stands by takes nothing of a term before one that it has promised, and tells what it took last."""
    rng = errand.rng
    errand.start_store(port=PORT, stands_by=True)
    keeper = errand.puppet("a rank")
    known, own, writer = _Elector(), _name(PORT).encode(), keeper
    names = [own, b"127.0.0.1:1", b"127.0.0.1:2"]
    electors = b"\n".join(names)
    for step in range(rng.randint(3, 10)):
        puppet = errand.puppet(f"leader {step}")
        term = rng.randint(0, 4), rng.choice(names[1:])
        what = rng.choice(("write", "write", "promise", "promise", "nonsense"))
        if what == "nonsense":
            answer = puppet.call(Kind.WRITE, own, 9, names[1], 0, 0, b"a decision")
            errand.expect("what half a decision hears", "expected two for each decision" in str(answer), True)
        elif what == "write":
            log = [frame for index in range(rng.randint(1, 3)) for frame in (f"{step} {index}".encode(), electors)]
            puppet.call(Kind.WRITE, own, *term, len(log) // 2, 0, *log)
            errand.expect("whether it takes a log", puppet.answer(puppet.asked, "i"), [int(term >= known.promised)])
            if term >= known.promised:
                is_late = term == known.written and len(log) <= len(known.log)
                known.log = known.log if is_late else log
                known.promised = known.written = term
                writer = puppet
        else:
            puppet.call(Kind.PROMISE, own, *term)
            answer = puppet.answer(puppet.asked, "iibibiib*")
            can = term > known.promised
            errand.expect("whether it promises", answer and answer[0], int(can))
            if can and isinstance(answer, list):
                errand.expect("what it took last", [(answer[3], answer[4]), answer[7:]], [known.written, known.log])
                known.promised = term
    _end_elector(errand, keeper, writer, has_log=bool(known.log))


def _end_elector(errand: Errand, keeper: Puppet, writer: Puppet, *, has_log: bool) -> None:
    """A rank comes, and hears why it does not lead; only who wrote last can say that the job is over."""
    is_promised = errand.rng.random() < 0.5
    candidate = errand.puppet("a candidate")
    if has_log:
        candidate.call(Kind.PROMISE, _name(PORT).encode(), 9, b"127.0.0.1:2")
    if not is_promised:
        candidate.end()
        errand.settle()
    rank = errand.puppet("a rank that lost its store")
    rank.ask(Kind.RETURN, 0, 0, 1, pack_ranks((0, 2, 0, 1, 0, 1)), b"")
    errand.machine.sleep(1.0)
    errand.settle()
    why = "for 127.0.0.1:2, which takes over" if is_promised else "1 of 3 hosts of the job follow it, no majority"
    why = why if has_log else "nothing was decided here yet"
    told = [text.decode() for (text,) in rank.notices(Kind.LOST_NOTICE, "b")]
    errand.expect("what a rank hears that comes", [why in text for text in told], [True])
    errand.puppet("a stranger").ask(Kind.OVER)
    errand.settle()
    errand.expect("whether it ends at a stranger's word", keeper.is_lost, False)
    if writer is not keeper:
        writer.ask(Kind.OVER)
        errand.settle()
        errand.expect("whether it ends at its leader's word", keeper.is_lost, True)


class _Job:
    """A job of several hosts, with a rank and a store each; the first store leads."""

    def __init__(self, errand: Errand) -> None:
        self.errand = errand
        self.size: int = errand.rng.choice((3, 4, 5, 7))
        self.ports: list[int] = [PORT + host for host in range(self.size)]
        self.stores: list[Actor] = [errand.start_store(port=port, stands_by=port != PORT) for port in self.ports]
        self.ranks: list[Puppet] = [errand.puppet(f"rank {rank}") for rank in range(self.size)]
        for rank, puppet in enumerate(self.ranks):
            puppet.call(Kind.JOIN, rank, self.size)
        hosts = [(_name(port).encode(), pack_ranks((rank,))) for rank, port in enumerate(self.ports)]
        fields = [field for host in hosts for field in host]
        self.ranks[0].call(Kind.ELECTORS, *fields)
        errand.expect("whether the electors are taken", self.ranks[0].answer(self.ranks[0].asked, "b*"), [])
        self.living: list[int] = [*range(self.size)]
        self.dead: list[int] = []

    def lose(self, host: int) -> None:
        """A host, and its rank."""
        self.errand.end(self.stores[host])
        self.ranks[host].end()
        self.living.remove(host)
        self.dead.append(host)

    def shrink(self, number: int) -> None:
        """The living ranks go on without the others: all hear so, and so the store has decided it."""
        meets = to_shrink(f"c{number}").encode(), pack_ranks(range(self.size)), b"", b"", round(MEETS_S * 1e3)
        for rank in self.living:
            self.ranks[rank].ask(Kind.MEET, *meets)
        self.errand.machine.sleep(4 * POLICY.ask_s)
        self.errand.settle()
        told = [self.ranks[rank].list_of(self.ranks[rank].asked) for rank in self.living]
        self.errand.expect("who goes on", told, [[pack_ranks((rank,)) for rank in self.living]] * len(self.living))

    def take_over(self, port: int, ranks: Sequence[int]) -> list[Puppet]:
        """Those ranks come to the store at `port` after the one that led was lost."""
        came = []
        for rank in ranks:
            puppet = self.errand.puppet(f"rank {rank} again", port)
            roll = pack_ranks((0, self.size, *range(self.size), *range(self.size)))
            puppet.ask(Kind.RETURN, 0, rank, 1, roll, b"")
            came.append(puppet)
        self.errand.machine.sleep(8 * POLICY.ask_s)
        self.errand.settle()
        return came


def losses(errand: Errand) -> None:
    """Hosts of a job are lost one by one, and the rest go on each time; then the store that leads, and another does.

    Those left decide after each loss, so that as many may be lost as leave a majority of those before, until two are
    left: then the one that leads decides alone.
    """
    rng, job = errand.rng, _Job(errand)
    for number in range(rng.randint(0, job.size - 2)):
        job.lose(rng.choice(job.living[1:]))
        job.shrink(2 * number)
        job.shrink(2 * number + 1)  # From now on all know who decides.
    if rng.random() < 0.3:
        for rank in job.living:
            job.ranks[rank].call(Kind.LEAVE)
            job.ranks[rank].end()
        errand.machine.sleep(1.0)
        ended = [job.stores[host].has_ended for host in job.living]
        errand.expect("which stores have ended with the job", ended, [True] * len(ended))
        return
    decide_alone = len(job.living) < LEAST_ELECTORS
    before, cut = [*job.dead], list[int]()
    job.lose(0)
    stays = rng.choice(job.living)
    if len(job.living) > 2 and 2 * (len(job.living) - 1) > len(job.living) + 1:
        # One more is cut off from those that are left: it does not answer, nor does its rank come.
        cut = [rng.choice([host for host in job.living if host != stays])]
        for host in job.living:
            if host not in cut:
                errand.machine.network.cut(job.stores[cut[0]].name, job.stores[host].name, inf)
    for rank in job.dead:
        job.ranks[rank].end()
    if rng.random() < 0.5:
        errand.machine.sleep(3.0)  # A store that stands by waits for ranks that compute.
    came = job.take_over(job.ports[stays], [rank for rank in job.living if rank not in cut])
    if decide_alone:
        told = [text for puppet in came for text in puppet.notices(Kind.LOST_NOTICE, "b")]
        errand.expect("how many hear that nobody can take over", len(told), len(came))
        return
    for puppet in came:
        roll = puppet.list_of(puppet.asked)
        errand.expect("the roll of the store that took over", [unpack_ranks(each)[1] for each in roll], [job.size])
        heard = [rank for rank, _why in puppet.notices(Kind.DIED_NOTICE, "ib")]
        errand.expect("who has died, as it knows", heard[: len(before)], before)
        errand.expect("who is on a host that does not answer", [rank for rank in heard if rank in cut], cut)


def a_leader(errand: Errand) -> None:
    """A store that leads takes no other's decisions, and no electors of who is no member; ranks that come stay."""
    errand.start_store()
    rank, stranger = errand.puppet("rank 0"), errand.puppet("a stranger")
    rank.call(Kind.JOIN, 0, 2)
    stranger.call(Kind.WRITE, b"it", 9, b"another", 0, 0)
    errand.expect("whether it takes another's log", stranger.answer(stranger.asked, "i"), [0])
    stranger.call(Kind.PROMISE, b"it", 9, b"another")
    answer = stranger.answer(stranger.asked, "iibibiib*")
    errand.expect("whether it promises to follow another", answer and answer[0], 0)
    answer = stranger.call(Kind.ELECTORS, *[b"127.0.0.1:9", b""] * LEAST_ELECTORS)
    errand.expect("what a stranger hears that names electors", "no member" in str(answer), True)
    stranger.ask(Kind.OVER)
    errand.settle()
    errand.expect("whether it ends at a stranger's word", rank.is_lost, False)
    died = pack_frame(Kind.DIED_NOTICE, 0, [1, b"it fell"])
    back = errand.puppet("rank 1 of another store")
    answer = back.call(Kind.RETURN, 0, 1, 1, pack_ranks((0, 2, 0, 1, 0, 1)), died)
    errand.expect("who comes back that is dead, hears it", back.notices(Kind.DIED_NOTICE, "ib"), [[1, b"it fell"]])
