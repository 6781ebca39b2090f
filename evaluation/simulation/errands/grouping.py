"""Errands of a job's ranks as a Group has them: what each is told of the others' ends, and of who does not come."""

import contextlib
import os
from collections.abc import Callable
from functools import partial
from math import inf

from evaluation.simulation.errands.errand import HOST, PORT, TIMEOUT_S, TOKEN, Errand
from lanterne.errors import LanterneError, PeerFailed, TransportError, TransportTimeout, Unavailable
from lanterne.transport import rank_group
from lanterne.transport.rank_group import LEFT_GRACE_S, Group
from lanterne.transport.store.client import StoreClient
from lanterne.transport.store.terms import Terms

# A look at what the store says comes so late at most; and for how long ranks look at all.
SOON_S, LOOKS_S = 0.05, 2.5
LAUNCHER = "LANTERNE_LAUNCHER"


def _groups(errand: Errand, size: int, program: Callable[[Group], object]) -> None:
    """Let `size` ranks do `program`, each in a process of its own, and wait for their ends."""

    def run(rank: int) -> None:
        client = StoreClient((HOST, PORT), TOKEN, TIMEOUT_S, early=True, machine=errand.machine)
        program(Group(rank, size, client, timeout_s=TIMEOUT_S))

    actors = [errand.start(f"rank {rank}", partial(run, rank)) for rank in range(size)]
    while not all(actor.has_ended for actor in actors):
        errand.machine.sleep(SOON_S)


def goodbyes(errand: Errand) -> None:
    """A rank leaves, or its program just ends, or ends after it knows of a death: the others hear which, and when.

    A wait for one that has left goes on for as long as its messages may be under way; one for nobody in particular, or
    for what can still come, goes on.
    """
    rng, machine = errand.rng, errand.machine
    errand.start_store()
    size = rng.randint(2, 5)
    goes, how = rng.randrange(size), rng.choice(("leaves", "ends", "is killed"))
    gone_s: list[float] = []

    def program(group: Group) -> None:
        group.barrier()
        if group.rank == goes:
            gone_s.append(machine.now_s())
            if how == "leaves":
                group.leave()
            elif how == "is killed":
                errand.end(errand.baton.here)
            return
        until_s = machine.now_s() + LOOKS_S
        with group:
            errors, when_s = _wait_for(group, goes, until_s)
            left = how != "is killed"
            errand.expect("what a wait for nobody in particular hears", errors[0], "" if left else "it ended")
            errand.expect("what a wait hears for what may still come", errors[1], "" if left else "it ended")
            errand.expect("what a wait for it hears", errors[2], "it has left the job" if left else "it ended")
            least_s = LEFT_GRACE_S if left else 0.0
            if not least_s <= when_s[2] - gone_s[0] <= least_s + 0.2:
                errand.problems.append(f"rank {goes} {how}: heard after {when_s[2] - gone_s[0]:g} s, not {least_s:g} s")
            errand.expect("who has left, without asking", [*group.left], [goes] if left else [])
            errand.expect("who has failed, without asking", [*group.failed()], [] if left else [goes])
            group.machine.sleep(SOON_S)

    def _wait_for(group: Group, peer: int, until_s: float) -> tuple[list[str], list[float]]:
        """What three kinds of waits hear, and when."""
        kinds = (partial(group.check_peers), partial(group.check_peers, [peer], ()), partial(group.check_peers, [peer]))
        errors, when_s = [""] * len(kinds), [0.0] * len(kinds)
        while machine.now_s() < until_s:
            for index, check in enumerate(kinds):
                try:
                    check()
                except PeerFailed as error:
                    errand.expect("whom a wait blames", error.rank, peer)
                    if not errors[index]:
                        errors[index] = "it ended" if "without goodbye" in error.reason else error.reason
                        when_s[index] = machine.now_s()
            machine.sleep(SOON_S / 10)
        return errors, when_s

    _groups(errand, size, program)


def ends_after(errand: Errand) -> None:
    """A rank whose program ends after another has died has died, too, for those that go on: it did not end in order."""
    rng, machine = errand.rng, errand.machine
    errand.start_store()
    size = rng.randint(3, 5)
    dies, ends = rng.sample(range(size), 2)
    is_told = rng.random() < 0.5

    def program(group: Group) -> None:
        group.barrier()
        if group.rank == dies and is_told:
            errand.end(errand.baton.here)
            return
        if group.rank in (dies, ends):
            until_s = machine.now_s() + 0.5
            while machine.now_s() < until_s and not group.failed():
                try:
                    group.check_peers()
                except PeerFailed:
                    break
                machine.sleep(SOON_S)
            return  # As a script whose error nobody catches, or that has come to its end.
        machine.sleep(2.0)
        try:
            group.check_peers([rank for rank in range(size) if rank != group.rank], ())
        except PeerFailed as error:
            errand.expect("who is named", error.rank, dies)
        failed = {dies, ends} if is_told else set[int]()
        errand.expect("who has failed", {*group.failed()}, failed)
        errand.expect("who has left", {*group.left} & {dies, ends}, {dies, ends} - failed)
        group.leave()

    _groups(errand, size, program)


def no_shows(errand: Errand) -> None:
    """Not all ranks come to an exchange: those that do name the others, and say whom the store has refused."""
    rng = errand.rng
    errand.start_store()
    size = rng.randint(2, 5)
    absent = sorted(rng.sample(range(size), rng.randint(1, size - 1)))
    knocks = rng.random() < 0.5
    if knocks:
        with contextlib.suppress(TransportError):
            StoreClient((HOST, PORT), TOKEN[::-1], TIMEOUT_S, machine=errand.machine)

    def program(group: Group) -> None:
        with group:
            group.barrier()
            if group.rank in absent:
                errand.machine.sleep(2.0)
                return
            try:
                group.exchange("who is here", b"x", 1.0)
            except TransportTimeout as error:
                errand.expect("whom it waits for", list(error.peers), absent)
                names = ", ".join(map(str, absent))
                ends = f"rank {group.rank} waits for rank {names}" + ("; the store refused 1" if knocks else "")
                errand.expect("what it says", str(error).partition(" connections")[0].endswith(ends), True)
            else:
                errand.problems.append(f"an exchange without ranks {absent} has ended")
            errand.machine.sleep(1.0)

    _groups(errand, size, program)


def mixed_mpi(errand: Errand) -> None:
    """Where MPI made a world of another size one rank says so, with what to do, and the others end quietly."""
    rng = errand.rng
    errand.start_store()
    size = rng.randint(2, 4)
    world_size, is_direct = rng.choice((size, 1, size + 1)), rng.random() < 0.5
    said: dict[int, str] = {}

    def program(group: Group) -> None:
        group.barrier()
        try:
            group.check_mpi_world(world_size)
            said[group.rank] = "nothing"
            group.barrier("after it")
            group.leave()
        except Unavailable as error:
            said[group.rank] = str(error)
        except SystemExit as ended:
            said[group.rank] = f"ends with {ended.code}"

    before = os.environ.get(LAUNCHER)
    os.environ[LAUNCHER] = "direct" if is_direct else "mpiexec"
    try:
        _groups(errand, size, program)
    finally:
        os.environ.pop(LAUNCHER)
        if before is not None:
            os.environ[LAUNCHER] = before
    if world_size == size:
        errand.expect("what ranks say of a world that is theirs", {*said.values()}, {"nothing"})
        return
    errand.expect("how the others end", {said[rank] for rank in range(1, size)}, {"ends with 3"})
    what = "launched without it" if is_direct else f"got a world of {world_size} ranks, expected {size}"
    errand.expect("what one rank says", what in said[0], True)


def grows(errand: Errand) -> None:
    """Ranks that take nobody in stay as they are; with those that wait they are one group, whose newcomers all know."""
    rng, machine = errand.rng, errand.machine
    errand.start_store()
    size, new = rng.randint(1, 4), rng.randint(1, 2)
    terms = Terms("1", "tcp", "a model")
    found: list[tuple[int, int, int, tuple[int, ...], bool]] = []

    def note(group: Group) -> None:
        found.append((group.rank, group.world_size, group.epoch, group.newcomers, group.begin(TIMEOUT_S)))
        machine.sleep(1.0)
        group.leave()

    def come() -> None:
        machine.sleep(1.0)
        client = StoreClient((HOST, PORT), TOKEN, TIMEOUT_S, machine=machine)
        group, _terms = Group.taken_in(client, terms, TIMEOUT_S, TIMEOUT_S)
        note(group)

    def program(group: Group) -> None:
        errand.expect("who is taken in before anybody comes", group.grow("g1", range(size), terms, TIMEOUT_S), None)
        machine.sleep(2.0)
        after = group.grow("g2", range(size), terms, TIMEOUT_S)
        if after is None:
            errand.problems.append(f"rank {group.rank} takes in nobody, of {new} that wait")
        else:
            after.take_over(group)
            note(after)

    newcomers = [errand.start(f"newcomer {number}", come) for number in range(new)]
    _groups(errand, size, program)
    while not all(each.has_ended for each in newcomers):
        machine.sleep(SOON_S)
    news = tuple(range(size, size + new))
    expected = [(rank, size + new, 1, news, True) for rank in range(size + new)]
    errand.expect("ranks, sizes, epochs, newcomers, and whether it began", sorted(found), expected)


def electors(errand: Errand) -> None:
    """Of each host that has a store one decides: the first, in the order of the ranks."""
    rng = errand.rng
    size = rng.randint(1, 8)
    hosts = [f"host {rng.randint(0, 4)}" for _ in range(size)]
    names = [rng.choice((f"{host}:{rank}", "")) for rank, host in enumerate(hosts)]
    found = rank_group.electors_of(names, hosts)
    pairs = [(host, name) for name, host in zip(names, hosts, strict=True) if name]
    expected = dict(reversed(pairs))
    errand.expect("which stores decide", {host: name for name, host in found}, expected)
    errand.expect("how many stores decide", len(found), len(expected))


def heirs(errand: Errand) -> None:
    """Ranks name the stores that may take over, one of each host, where there are enough; then another does, and knows.

    What a rank was told by the store that was lost it tells the next: also those hear it that were not told.
    """
    rng, machine = errand.rng, errand.machine
    size = rng.randint(2, 5)
    leader = errand.start_store()
    for rank in range(1, size):
        errand.start_store(port=PORT + rank, stands_by=True)
    keeper, ports = errand.puppet("who waits for the end", PORT + 1), [PORT + rank for rank in range(1, size)]
    is_cut = rng.random() < 0.3
    leaves, few, held_s = rng.random() < 0.5, size < 3, rng.choice((0.0, 0.6))
    come: list[str] = []

    def program(group: Group) -> None:
        hosts, group.hosts = group.hosts, tuple(f"host {rank}" for rank in range(size))
        try:
            own = "" if group.rank == 0 else f"{HOST}:{PORT + group.rank}"
            group.name_heirs(own, TIMEOUT_S)
        except LanterneError as error:
            come.append(str(error))
            group.leave()
            return
        group.hosts = hosts
        come.append("")
        assert group.store is not None
        names = sorted((HOST, PORT + rank) for rank in range(size))
        errand.expect("which stores may take over", sorted(group.store.heirs), names)
        group.barrier()
        if group.rank == size - 1:
            group.leave() if leaves else group.abandon()
            return
        machine.sleep(0.5)
        if group.rank == 0:
            if is_cut:
                others = [f"{kind} {number}" for kind in ("rank", "store") for number in (*range(size), *ports)]
                for other in others:
                    machine.network.cut(leader.name, other, inf)
            else:
                errand.end(leader)
            # One does not reach the first of the others at once.
            machine.network.cut("rank 1", f"store {PORT + 1}", machine.baton.now_s + held_s)
        machine.sleep(0.1)
        living = [rank for rank in range(size) if rank != size - 1]
        came = group.survivors("c/shrink", range(size), (), b"", TIMEOUT_S)
        errand.expect("who goes on", sorted(came), living)
        told = [*group.left], [*group.failed()]
        errand.expect("who has left, and who has died", told, ([size - 1], []) if leaves else ([], [size - 1]))
        group.leave()

    _groups(errand, size, program)
    errand.expect("how many ranks know of stores that take over", come.count(""), 0 if few else size)
    told = ["got hosts, and 2 of them, expected 3 or more" in text for text in come if text]
    errand.expect("what those hear that are too few", told, [True] * size if few else [])
    keeper.end()
