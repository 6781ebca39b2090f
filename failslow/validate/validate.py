"""Which rank computes slowly, and which link is slow: tests that take seconds, instead of a test of every pair.

1. Every rank computes alone (loads.py), co-located ranks in turn.
2. The links of a ring and both trees, in at most 6 passes, both directions at once (links.py, link_probe.py).
3. Both at once: what is slow only then escapes tests of one kind at a time.

Whatever looks slow is measured again beside peers that do not: twice if it clearly is, more often if a busy machine
may explain it, and is blamed only if it is slow by all that was measured (settle.py, judge.py).
Between two iterations of a job that has suspects (suspects.py) only those are tested, with small messages, and step 3
only where nothing was slow.

Paper: Wu et al. (GREYHOUND), section 4.3; differs: both directions, both trees, step 3, the confirmations.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

import numpy as np

from lanterne.errors import InputError
from lanterne.failslow.validate import judge
from lanterne.failslow.validate import loads as gemm
from lanterne.failslow.validate.cores import pinned, spread_cores
from lanterne.failslow.validate.judge import (
    SLOW_LINK,
    SLOW_LINK_STARVED,
    Computed,
    Finding,
    SlowQuantity,
    findings,
    judge_links,
    judge_ranks,
)
from lanterne.failslow.validate.link_kinds import summary
from lanterne.failslow.validate.link_probe import Beside, LinkSamples, measure_links, nothing, pooled
from lanterne.failslow.validate.links import (
    WITNESSES,
    Link,
    both_ways,
    colour_edges,
    link_passes,
    neighbours,
    with_witnesses,
)
from lanterne.failslow.validate.probe import Probe
from lanterne.failslow.validate.settle import settle
from lanterne.failslow.validate.validation import Validation
from lanterne.kernels.cpu.delay import wait_until
from lanterne.transport.nccl.over_nccl import NcclTransport

if TYPE_CHECKING:
    from lanterne.collectives.communicator import Communicator
    from lanterne.transport.base import Transport

SIZES = (16 << 20, 32 << 20, 64 << 20)


REPETITIONS = 3  # chosen: the best and the median of three
# A first look at every link: what the sizes would take. They are halved until the passes fit.
FIRST_NBYTES = 1 << 20  # chosen: a millisecond on 10 Gbit/s
LEAST_NBYTES = 256 << 10  # chosen: less tells latency, not bandwidth
# Of the time limit for computing alone, and at once with transfers; for transfers alone: the rest is for confirmations.
COMPUTE_SHARE, LINK_SHARE = 0.15, 0.35
TURN_S = 0.3  # chosen: of a rank's computing, where the limit allows
LEAST_PRODUCT_S = 2e-3  # of a product on a GPU that takes less the launch is much
# Parts of a turn: the turns come around so often, and what slows a core for seconds slows all ranks.
PARTS = 2
# Further measurements of what looks slow: how many are enough where it clearly is, and how many there are at most.
# Those of computing take a third of the first one's time.
CONFIRMATIONS, MOST_CONFIRMATIONS = 1, 6
# Transfers beside which a rank computes, until it has done so often enough.
ATTEMPTS = 5  # chosen: a crowded machine may not let a rank compute beside a transfer
# Small messages that take longer than this are enough to tell a slow link where it must be told quickly.
PATIENCE_S = 10e-3  # chosen: nothing else delays every small message so much


Passes: TypeAlias = tuple[tuple[Link, ...], ...]
SlowRanks: TypeAlias = dict[int, SlowQuantity]
SlowLinks: TypeAlias = dict[Link, SlowQuantity]
SlowOnes: TypeAlias = dict[int | Link, SlowQuantity]


@dataclass(frozen=True)
class Injected:
    """Slowness for experiments: factors of this rank's computing, always and only during transfers."""

    alone: float = 1.0
    together: float = 1.0


class ValidateOptions(TypedDict, total=False):
    """Options of `validate` by name."""

    ranks: Sequence[int] | None
    links: Sequence[Link] | None
    device: str
    link_memory: str | None
    limit_s: float
    sizes: Sequence[int]
    repetitions: int
    thorough: bool
    transport: Transport | None


def validate(
    comm: Communicator,
    ranks: Sequence[int] | None = None,
    links: Sequence[Link] | None = None,
    *,
    device: str = "cpu",
    link_memory: str | None = None,
    limit_s: float = 20.0,
    sizes: Sequence[int] = SIZES,
    repetitions: int = REPETITIONS,
    thorough: bool = True,
    transport: Transport | None = None,
    injected: Injected = Injected(),
    tick: Callable[[str], object] | None = None,
) -> Validation:
    """Find slow ranks and links. Every rank of `comm` calls it, with the same arguments, while the job is paused.

    Args:
        comm: of the job; the tests run on communicators of their own.
        ranks: whose computing to test, in ring order; None for all, or for the ends of `links`; () for nobody's.
            Suspects need healthy peers among them.
        links: (a, b) to test; None for the ring and both trees over `ranks`; () for none.
        device: what computes: "cpu" or "cuda".
        link_memory: what transfers are of: "host", or over nccl "device", timed there; None for the latter where it is.
        limit_s: about how long it may take; large transfers shrink to fit.
        sizes: bytes of the transfers.
        repetitions: transfers of each size over each link.
        thorough: False: one dtype, and step 3 only where nothing was slow before it and begun
            again only within `limit_s`; links whose small messages take 10 ms are timed once.
        transport: what the transfers go over, as Trainer has it; None for that of `comm`.
        injected: slowness of this rank, for experiments.
        tick: called on every tested rank with what is being done.

    Raises:
        InputError: ranks or links that are none of this communicator; device memory over another transport than nccl.
        TransportTimeout, PeerFailed: a rank did not come, or died; names it.
    """
    start_s = time.monotonic()
    computing, members = _tested(comm, ranks, links)
    passes = link_passes(computing) if links is None else colour_edges(_distinct(links))
    sizes = tuple(sorted(sizes))
    on_device = _on_device(comm.transport if transport is None else transport, link_memory)
    color, key = (0, members.index(comm.rank)) if comm.rank in members else (-1, 0)
    probe_comm = comm.split(color, key)
    wire = probe_comm if transport is None else comm.split(color, key, transport)
    outcome = None
    if probe_comm is not None and wire is not None:
        with probe_comm, wire:
            probe = Probe(probe_comm, gemm.name_of_device(device), wire, on_device=on_device)
            run = _ValidationRun(probe, members, computing, device, limit_s, thorough, injected, tick)
            outcome = run.validate(passes, sizes, repetitions, start_s)
    if outcome is not None and len(members) == comm.world_size:
        return outcome
    return _spread(comm, members[0], outcome, limit_s)


def validate_suspects(
    probe: Probe,
    ranks: Sequence[int],
    links: Sequence[Link],
    limit_s: float,
    sizes: Sequence[int],
    repetitions: int,
    injected: Injected = Injected(),
) -> Validation:
    """As `validate`, not thorough, by a Probe of all ranks: making communicators takes longer than testing suspects."""
    start_s, comm = time.monotonic(), probe.comm
    computing, _ = _tested(comm, ranks, links)
    run = _ValidationRun(probe, tuple(range(comm.world_size)), computing, "cpu", limit_s, False, injected, None)
    return run.validate(colour_edges(_distinct(links)), tuple(sorted(sizes)), repetitions, start_s)


def _tested(
    comm: Communicator, ranks: Sequence[int] | None, links: Sequence[Link] | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(ranks whose computing is tested, all that take part)."""
    everyone = range(comm.world_size)
    for link in links or ():
        if len(link) != 2 or link[0] == link[1] or not set(link) <= set(everyone):
            raise InputError(f"validate: got link {tuple(link)}, expected two different ranks of {comm.world_size}")
    ends = sorted({end for link in links or () for end in link})
    if ranks is None:
        ranks = everyone if links is None else ends
    computing = tuple(ranks)
    members = (*computing, *(end for end in ends if end not in computing))
    alone, all_there = len(computing) == 1, set(computing) <= set(everyone)
    if len(members) < 2 or alone or len(set(computing)) < len(computing) or not all_there:
        raise InputError(f"validate: got ranks {computing}, expected at least 2 of the {comm.world_size}, each once")
    return computing, members


def _on_device(transport: Transport, link_memory: str | None) -> bool:
    """Whether transfers are of device memory; links that are emulated carry the host's only."""
    over_nccl = isinstance(transport, NcclTransport)
    if link_memory not in (None, "host", "device"):
        raise InputError(f"validate: got link_memory {link_memory!r}, expected host or device")
    if link_memory == "device" and not over_nccl:
        raise InputError(f"validate: got link_memory device over {transport.name}, expected nccl itself")
    return over_nccl and link_memory != "host"


def _distinct(links: Iterable[Link]) -> list[Link]:
    return sorted({(min(link), max(link)) for link in links})


def _spread(comm: Communicator, root: int, outcome: Validation | None, limit_s: float) -> Validation:
    """The outcome on all ranks, also those that were not tested; as JSON, since nothing received is unpickled."""
    data = np.frombuffer(json.dumps(outcome.to_json()).encode() if outcome else b"", np.uint8)
    size = np.array([len(data)], np.int64)
    comm.broadcast(size, root, timeout_s=comm.timeout_s + 3 * limit_s)
    data = data.copy() if comm.rank == root else np.empty(int(size[0]), np.uint8)
    comm.broadcast(data, root)
    return Validation.from_json(json.loads(data.tobytes()))


class _Computing:
    """The computing of the ranks of a validation: measured in turns, each beside others, and judged.

    Attributes: `ranks`; `usual`, the load that runs beside transfers; `records` of all that was measured; `busy`: what
    was found to be in use by others; `own_time`: whether CPU seconds tell what the machine takes from a rank.
    """

    def __init__(
        self,
        probe: Probe,
        members: tuple[int, ...],
        ranks: Iterable[int],
        device: str,
        limit_s: float,
        thorough: bool,
        injected: Injected,
        tick: Callable[[str], object],
    ) -> None:
        self.probe = probe
        self.members = members
        self.ranks = tuple(members.index(rank) for rank in ranks)
        turns = probe.turns([(rank,) for rank in self.ranks])
        self.turn_s = min(TURN_S, COMPUTE_SHARE * limit_s / 2 / max(len(turns), 1))
        self.injected = injected
        self.tick = tick
        self.own_time = device == "cpu"
        which = None if thorough else (gemm.USUAL,)
        self.loads = gemm.loads(device, which, self._agreed_sides(which) if device == "cuda" else None)
        self.usual = next(load for load in self.loads if load.name.startswith(gemm.USUAL))
        self.records: list[dict[str, Any]] = []
        self.busy: tuple[Finding, ...] = ()

    def _agreed_sides(self, which: Collection[str] | None) -> dict[str, int]:
        """{dtype: side} of the products: alike on all ranks, so that a turn lasts about as long as it may on each."""
        share_s = self.turn_s / len(which or gemm.PRODUCTS["cuda"]) / gemm.LEAST_SAMPLES
        mine = gemm.fitting_sides(max(LEAST_PRODUCT_S, share_s), which)
        fitting = self.probe.gather(np.array(list(mine.values()))).min(axis=0)
        return dict(zip(mine, fitting.tolist(), strict=True))

    def _compute(self, ranks: Sequence[int], turn_s: float) -> Computed:
        """The computing of `ranks`, in turns, while the others sleep.

        A turn has several parts, on different cores and beside different ranks: what is slow there and then, or is in
        use, is no fault of the rank.
        """
        probe, turns = self.probe, self.probe.turns([(rank,) for rank in ranks])
        self.tick(f"computing, {len(turns)} turns")
        start_s, part_s = probe.start_together(), turn_s / PARTS
        parts: list[list[gemm.Samples]] = []
        for number, turn in enumerate(turns * PARTS):
            if (probe.comm.rank,) in turn:
                wait_until(start_s + number * part_s)
                with pinned(self._core(turn, number // len(turns))):
                    parts.append([self._sample(load, 0.8 * part_s / len(self.loads)) for load in self.loads])
        wait_until(start_s + len(turns) * turn_s)
        # Napping, until all have done: a rank that has is not to be in the way.
        probe.barrier()
        return self.collect(list(map(gemm.latest, zip(*parts, strict=True))), self.loads, "alone", ranks)

    def _sample(self, load: gemm.Load, share_s: float) -> gemm.Samples:
        return gemm.sample(load, share_s, self.injected.alone, own_time=self.own_time, parts=PARTS)

    def _core(self, turn: Collection[tuple[int]], part: int) -> int | None:
        """The core on which this rank computes in a part of a `turn`: none that another of its machine has then."""
        machines, me = self.probe.machines, self.probe.comm.rank
        here = [rank for (rank,) in turn if machines[rank] == machines[me]]
        if not self.own_time:
            return None
        cores = spread_cores(len(here))
        return cores[(here.index(me) + part) % len(cores)]

    def collect(
        self, mine: Iterable[gemm.Samples], loads: Sequence[gemm.Load], when: str, ranks: Iterable[int]
    ) -> Computed:
        """What this rank measured of `loads` and all others did, recorded for `ranks`; all ranks call it."""
        table = np.full((len(loads), 2, gemm.MAX_SAMPLES), np.nan)
        for row, samples in zip(table, mine, strict=False):
            for values, column in zip(samples, row, strict=True):
                column[: len(values)] = values
        everyone = self.probe.gather(table)
        found: Computed = {}
        for rank in ranks:
            for load, (wall_s, cpu_s) in zip(loads, everyone[rank], strict=True):
                count = int((~np.isnan(wall_s)).sum())
                samples = gemm.Samples(tuple(wall_s[:count].tolist()), tuple(cpu_s[:count].tolist()))
                found[rank, load.name] = samples
                own_s = None if any(map(isnan, samples.cpu_s)) else samples.cpu_s
                record = {"rank": self.members[rank], "load": load.name, "when": when, "wall_s": samples.wall_s}
                self.records.append(record | {"cpu_s": own_s})
        return found

    def judge(self, rounds: Sequence[Computed], *, starved: bool = False) -> tuple[SlowRanks, SlowRanks]:
        """Return the ranks that `rounds` show to be slow, and those of which it cannot be said."""
        return judge_ranks(rounds, self.probe.devices, self.probe.places, starved=starved)

    def settled(self) -> tuple[SlowRanks, SlowRanks]:
        """(the slow ranks, those of which it cannot be said)."""
        turn = itertools.count(1)

        def again(doubtful: SlowRanks) -> Computed:
            healthy = [rank for rank in self.ranks if rank not in doubtful]
            # In another order each time: nobody computes beside the same rank always.
            ranks = rotated([*doubtful, *healthy[:WITNESSES]], next(turn))
            return self._compute(ranks, self.turn_s / 3)

        first = self._compute(self.ranks, self.turn_s)
        if self.own_time:
            self.busy = judge.contended(first, self.probe.places)
        return settle(first, self.judge, again, CONFIRMATIONS, MOST_CONFIRMATIONS)


class _ValidationRun:
    """One validation, on a rank that is tested. Inside, ranks are those of the probe: positions in `members`."""

    def __init__(
        self,
        probe: Probe,
        members: tuple[int, ...],
        computing: Iterable[int],
        device: str,
        limit_s: float,
        thorough: bool,
        injected: Injected,
        tick: Callable[[str], object] | None,
    ) -> None:
        self.probe = probe
        self.members = members
        self.limit_s = limit_s
        self.thorough = thorough
        self.tick = tick or (lambda text: None)
        self.injected = injected
        self.computing = _Computing(probe, members, computing, device, limit_s, thorough, injected, self.tick)
        self.links: list[dict[str, Any]] = []

    def validate(self, passes: Passes, sizes: tuple[int, ...], repetitions: int, start_s: float) -> Validation:
        at = {rank: position for position, rank in enumerate(self.members)}
        passes = tuple(tuple((at[a], at[b]) for a, b in batch) for batch in passes)
        alone_ranks, unknown_ranks = self.computing.settled() if self.computing.ranks else ({}, {})
        sizes, turns_s = self._fit(passes, sizes, repetitions)
        self.tick(f"{len(passes)} passes over {sum(map(len, passes))} links")
        alone_links, unknown_links = self._settled_links(passes, sizes, repetitions)
        found = findings(alone_ranks, alone_links, both_ways(passes), "alone")
        unsure = findings(unknown_ranks, unknown_links, both_ways(passes), "alone")
        if self.thorough or not found:
            self.tick("computing and transferring at once")
            smallest = _shrunk(sizes[:1], turns_s * REPETITIONS, COMPUTE_SHARE * self.limit_s)
            passes = passes or colour_edges(neighbours(self.computing.ranks))
            slow, doubtful = self._settled_together(passes, smallest, repetitions)
            # A rank that computes slowly is late to take in what has come: that is not the link's fault.
            late = {key for key in alone_ranks.keys() | slow.keys() if not isinstance(key, tuple)}
            known = alone_ranks.keys() | alone_links.keys()
            found, unsure = (
                before + findings(*_by_kind(some, known, late), both_ways(passes), "together")
                for before, some in ((found, slow), (unsure, doubtful))
            )
        kinds, path = self._kinds()
        return Validation(
            tuple(self._renamed(finding, kinds) for finding in found),
            tuple(self._renamed(finding, kinds) for finding in unsure),
            tuple(self._renamed(finding, kinds) for finding in self.computing.busy),
            self.members,
            tuple(list(dict.fromkeys(self.probe.hosts)).index(host) for host in self.probe.hosts),
            tuple(tuple((self.members[a], self.members[b]) for a, b in batch) for batch in passes),
            sizes,
            tuple(self.computing.records),
            tuple(self._with_kind(record, kinds) for record in self.links),
            self._agreed_s(time.monotonic() - start_s),
            path,
        )

    def _agreed_s(self, took_s: float) -> float:
        return float(self.probe.gather(np.array([took_s])).max())

    def _renamed(self, finding: Finding, kinds: Mapping[Link, str]) -> Finding:
        links = tuple((self.members[a], self.members[b]) for a, b in finding.links)
        own = ", ".join(sorted({kinds[link] for link in links if link in kinds}))
        evidence = f"{finding.evidence}; what links them: {own}" if own else finding.evidence
        return finding._replace(
            ranks=tuple(self.members[rank] for rank in finding.ranks), links=links, evidence=evidence
        )

    def _kinds(self) -> tuple[dict[Link, str], str]:
        """({directed link between GPUs that was tested: what it is}, the path that was measured, with these)."""
        wire, at = self.probe.device_wire, self.members.index
        ways = sorted({(record["src"], record["dst"]) for record in self.links})
        if wire is None or not ways:
            return {}, self.probe.path
        found, silent = wire.kinds(self.probe.hosts, [(at(src), at(dst)) for src, dst in ways])
        kinds = dict(zip(ways, found.values(), strict=True))
        return kinds, f"{self.probe.path}: {summary(kinds.values(), silent)}"

    def _with_kind(self, record: dict[str, Any], kinds: Mapping[Link, str]) -> dict[str, Any]:
        kind = kinds.get((record["src"], record["dst"]))
        return record if kind is None else record | {"kind": kind}

    # -- links

    def _fit(self, passes: Passes, sizes: tuple[int, ...], repetitions: int) -> tuple[tuple[int, ...], float]:
        """(`sizes` as they fit into their share of the time, seconds that a byte takes over all turns)."""
        if min(sizes) <= LEAST_NBYTES:
            return sizes, 0.0
        self.tick("a first look at the links")
        first = measure_links(self.probe, passes, (FIRST_NBYTES,), 1)
        turns_s = 0.0
        for batch in passes:
            for turn in self.probe.turns(batch):
                some = (first[way] for way in both_ways([turn]))
                turns_s += max(one.times_s[FIRST_NBYTES][0] - one.latency_s for one in some) / FIRST_NBYTES
        return _shrunk(sizes, turns_s * (repetitions + 1), LINK_SHARE * self.limit_s), turns_s

    def _transfer(
        self, passes: Passes, sizes: Sequence[int], repetitions: int, when: str, background: Beside = nothing
    ) -> dict[Link, LinkSamples]:
        patience_s = inf if self.thorough else PATIENCE_S
        found = measure_links(self.probe, passes, sizes, repetitions, background, patience_s)
        for (src, dst), samples in found.items():
            for nbytes, times_s in samples.times_s.items():
                ends = {"src": self.members[src], "dst": self.members[dst], "when": when}
                self.links.append(ends | {"latency_s": samples.latency_s, "nbytes": nbytes, "time_s": times_s})
        return found

    def _judge_links(
        self, rounds: Sequence[Mapping[Link, LinkSamples]], least_ratio: float = SLOW_LINK
    ) -> tuple[SlowLinks, SlowLinks]:
        """Return the slow directed links, and those of which it cannot be said."""
        samples = {way: pooled([one[way] for one in rounds if way in one]) for way in rounds[0]}
        return judge_links(samples, self.probe.hosts, least_ratio, crowded=self.probe.crowded)

    def _settled_links(self, passes: Passes, sizes: Sequence[int], repetitions: int) -> tuple[SlowLinks, SlowLinks]:
        """(the slow directed links, those of which it cannot be said)."""
        if not passes:
            return {}, {}
        first = self._transfer(passes, sizes, repetitions, "alone")

        def again(doubtful: SlowLinks) -> dict[Link, LinkSamples]:
            # Judged beside all that was measured: the suspects alone may be too few to know what is usual.
            some = colour_edges(with_witnesses(first, doubtful, self.probe.hosts))
            return self._transfer(some, sizes, repetitions, "alone")

        slow, _ = self._judge_links([first])
        # Nothing else delays every small message so much.
        is_plain = not self.thorough and all(first[way].latency_s > PATIENCE_S for way in slow)
        return settle(first, self._judge_links, again, 0 if is_plain else CONFIRMATIONS, MOST_CONFIRMATIONS)

    # -- both at once

    def _settled_together(self, passes: Passes, sizes: Sequence[int], repetitions: int) -> tuple[SlowOnes, SlowOnes]:
        """(slow, unsure) ranks and directed links, while every rank computes and transfers at once."""
        starved = self.probe.starved
        least_ratio = SLOW_LINK_STARVED if starved else SLOW_LINK
        first = self._at_once(passes, sizes, repetitions)

        def verdict(rounds: list[tuple[Computed, dict[Link, LinkSamples]]]) -> tuple[SlowOnes, SlowOnes]:
            computed, transfers = zip(*rounds, strict=True)
            ranks, _ = self.computing.judge(computed, starved=starved)
            slow, unsure = self._judge_links(transfers, least_ratio)
            no_ranks: SlowRanks = {}
            return ranks | slow, no_ranks | unsure

        def again(doubtful: SlowOnes) -> tuple[Computed, dict[Link, LinkSamples]]:
            ranks = {key for key in doubtful if not isinstance(key, tuple)}
            ways = {way for way in first[1] if way in doubtful or ranks & set(way)}
            return self._at_once(colour_edges(with_witnesses(first[1], ways, self.probe.hosts)), sizes, repetitions)

        return settle(first, verdict, again, CONFIRMATIONS, MOST_CONFIRMATIONS)

    def _at_once(
        self, passes: Passes, sizes: Sequence[int], repetitions: int
    ) -> tuple[Computed, dict[Link, LinkSamples]]:
        """One measurement of `_together`: transfers, until every rank has computed often enough beside them."""
        mine: list[gemm.Samples] = []
        began_s = time.monotonic()
        tested = sorted({end for batch in passes for link in batch for end in link})

        @contextlib.contextmanager
        def background() -> Iterator[Sequence[int]]:
            slowdown = max(self.injected.alone, self.injected.together)
            with gemm.Background(self.computing.usual, slowdown, own_time=self.computing.own_time) as load:
                yield (load.thread,)
            mine.append(load.samples)

        attempts_left = ATTEMPTS
        while True:
            transfers = self._transfer(passes, sizes, repetitions, "together", background)
            merged = gemm.latest(mine)
            is_over = not self.thorough and time.monotonic() - began_s > self.limit_s
            counts, over = self.probe.gather(np.array([len(merged.wall_s), is_over])).T
            attempts_left -= 1
            if not attempts_left or counts[tested].min() >= gemm.LEAST_SAMPLES or over.any():
                break
        return self.computing.collect([merged], [self.computing.usual], "together", tested), transfers


def _by_kind(slow: SlowOnes, known: Collection[int | Link], late: set[int]) -> tuple[SlowRanks, SlowLinks]:
    """The ranks, and the directed links, of `slow` but what is `known`, and links of ranks that are `late`."""
    fresh = {key: one for key, one in slow.items() if key not in known}
    return (
        {rank: one for rank, one in fresh.items() if not isinstance(rank, tuple)},
        {way: one for way, one in fresh.items() if isinstance(way, tuple) and not late & set(way)},
    )


def rotated(items: Sequence[int], count: int) -> list[int]:
    """`items` from the one at `count` on, and then those before it."""
    start = count % len(items)
    return [*items[start:], *items[:start]]


def _shrunk(sizes: tuple[int, ...], s_per_byte: float, limit_s: float) -> tuple[int, ...]:
    """`sizes`, halved alike until the transfers fit into `limit_s`."""
    while sum(sizes) * s_per_byte > limit_s and min(sizes) > LEAST_NBYTES:
        sizes = tuple(nbytes // 2 for nbytes in sizes)
    return sizes
