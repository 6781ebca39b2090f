"""What the measurements of a validation prove: which ranks compute slowly, which links are slow. Pure functions.

Every rank and link is compared with its peers only: devices of one name, links of one kind (within a host, or between
hosts). Nothing is slow by itself: where there is no peer, there is no verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import inf, isnan
from statistics import median, median_low
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from lanterne.failslow.validate.links import Link, split_blame
from lanterne.failslow.validate.loads import Samples

if TYPE_CHECKING:
    from lanterne.failslow.validate.link_probe import LinkSamples


SLOW_COMPUTE = 1.2
SLOW_COMPUTE_STARVED = 1.5  # chosen: while ranks compute and transfer on one core
SLOW_LINK = 1.3  # chosen: half the bandwidth of a shared link reads as 2
# chosen: more than a busy machine was seen to explain, on which ranks move their data when they get their turns
SLOW_LINK_STARVED = 2.5
SLOW_LATENCY = 3.0
# A latency must also exceed the peers' by this; and where cores are shared by a tick.
LEAST_LATENCY_S = 200e-6  # what scheduling explains on a core of one's own
LEAST_LATENCY_CROWDED_S = 4e-3  # a tick of the scheduler
# The same for a transfer.
LEAST_TRANSFER_S = 100e-6  # chosen: the best of several counts
LEAST_TRANSFER_CROWDED_S = 1e-3  # chosen: the best of several counts
UNDISTURBED = 1.1  # chosen: time by the clock over that of its core
FEW_LINKS = 12  # the directions between 4 ranks, half of which one network card makes slow


# A measurement of computing: Samples by (rank, load name).
Computed: TypeAlias = dict[tuple[int, str], Samples]
# A machine and its cores: equal of ranks that share them.
Place: TypeAlias = tuple[int, int]


class SlowQuantity(NamedTuple):
    """One quantity that exceeds its peers': `ratio` times, `own_s` against `peers_s`; `text` says it in words.

    `is_clear`: its best is slow even beside the worst of those that are not: no disturbance explains that.
    `is_explained`: it is not slow without what was spent on waiting for a core.
    `is_contended`: of a rank: it is slow by the clock alone, since it gets too little of its core.
    """

    ratio: float
    own_s: float
    peers_s: float
    text: str
    is_clear: bool = False
    is_explained: bool = False
    is_contended: bool = False


def judge_ranks(
    rounds: Sequence[Computed], devices: Sequence[int], cores: Sequence[Place], *, starved: bool = False
) -> tuple[dict[int, SlowQuantity], dict[int, SlowQuantity]]:
    """Return the ranks that compute slowly, by their worst load, and those of which that cannot be said.

    Disturbances come and go: each measurement is compared with the peers' of the same one, and the best of all with
    the peers' best; a slow rank is slow in most of the first, and in the second. Of a rank that takes longer than its
    peers by the clock, and was interrupted whatever it did, nobody knows whether its core is slow or only busy.

    Args:
        rounds: the measurements; all ranks are in the first.
        devices: the device of each rank; equal ones are peers.
        cores: the Place of each rank: what else runs there slows all of
            them by the clock, so they are judged by the clock together, and by their own core time one by one. Core
            time counts only of repetitions that nothing interrupted: others find their caches cold.
        starved: none can be expected to be uninterrupted: all count, and more is needed.
    """
    found: dict[int, SlowQuantity] = {}
    unsure: dict[int, SlowQuantity] = {}
    known: set[int] = set()
    least = SLOW_COMPUTE_STARVED if starved else SLOW_COMPUTE
    for load, ranks, picked in _peers(rounds, devices):
        own = _compared([_core_times_s(one, starved) for one in picked], least)
        known.update(own)
        alone_s = [{rank: median(samples.wall_s) for rank, samples in one.items()} for one in picked]
        timed = _is_timed(picked)
        shared_s = [{rank: _shared_s(rank, one, cores) for rank in one} for one in alone_s]
        clock, alone = (_compared(times_s, least) for times_s in (shared_s if timed else alone_s, alone_s))
        for rank in ranks:
            slow = _slow_load(load, own.get(rank), clock[rank], least)
            if slow and timed and rank not in own:
                slow = slow._replace(text=f"{slow.text}; it never had its core to itself", is_contended=True)
            if slow and (rank not in found or found[rank].ratio < slow.ratio):
                found[rank] = slow
            if timed and not starved and (slow := _slow_load(load, None, alone[rank], least)):
                unsure[rank] = slow._replace(text=f"{slow.text}, but it never had its core to itself")
    return found, {rank: slow for rank, slow in unsure.items() if rank not in known}


def contended(measured: Computed, cores: Sequence[Place]) -> tuple[Finding, ...]:
    """Findings of ranks that other work kept from their cores, whoever else it did that to; no blame.

    Args:
        measured: of ranks that computed in turns, each on a core of its own.
        cores: as judge_ranks has it: ranks that share their cores are one Finding.
    """
    found = []
    for place in dict.fromkeys(cores):
        here = {key: samples for key, samples in measured.items() if cores[key[0]] == place}
        wall_s = sum(sum(samples.wall_s) for samples in here.values())
        cpu_s = sum(sum(samples.cpu_s) for samples in here.values())
        if cpu_s > 0 and wall_s >= SLOW_COMPUTE * cpu_s:
            ranks = tuple(sorted({rank for rank, _ in here}))
            text = f"other work runs on its cores: computing had them {cpu_s / wall_s:.0%} of the time"
            found.append(Finding("contention", ranks, (), "alone", wall_s / cpu_s, text))
    return tuple(found)


def _peers(
    rounds: Sequence[Computed], devices: Sequence[int]
) -> Iterator[tuple[str, list[int], list[dict[int, Samples]]]]:
    """(load, ranks, {rank: Samples} of each measurement) of those that are compared: two or more, of one device."""
    for load in dict.fromkeys(name for _, name in rounds[0]):
        for device in set(devices):
            picked = [
                {
                    r: samples
                    for (r, name), samples in one.items()
                    if name == load and devices[r] == device and samples[0]
                }
                for one in rounds
            ]
            if len(picked[0]) > 1:
                yield load, list(picked[0]), picked


def _is_timed(picked: Sequence[Mapping[int, Samples]]) -> bool:
    return not any(isnan(samples.cpu_s[0]) for samples in picked[0].values())


def _core_times_s(picked: Mapping[int, Samples], starved: bool = False) -> dict[int, float]:
    """{rank: core_time_s}, of the ranks of which it is known."""
    times_s = {rank: core_time_s(samples, starved=starved) for rank, samples in picked.items()}
    return {rank: time_s for rank, time_s in times_s.items() if time_s is not None}


def core_time_s(samples: Samples, *, starved: bool = False) -> float | None:
    """The least core time of a repetition that nothing interrupted; None where every one was, or it is not known."""
    pairs = [pair for pair in zip(samples.wall_s, samples.cpu_s, strict=True) if not isnan(pair[1])]
    return min((cpu_s for wall_s, cpu_s in pairs if starved or wall_s <= UNDISTURBED * cpu_s), default=None)


def _shared_s(rank: int, times_s: Mapping[int, float], cores: Sequence[Place]) -> float:
    """The median of the ranks that share the cores of `rank`."""
    return median(time_s for other, time_s in times_s.items() if cores[other] == cores[rank])


def _compared(rounds: Sequence[Mapping[int, float]], least: float) -> dict[int, SlowQuantity]:
    """{rank: SlowQuantity, without text} of all ranks in `rounds`, the {rank: seconds} of each measurement."""
    ratios: dict[int, list[float]] = {}
    best_s: dict[int, float] = {}
    for times_s in rounds:
        peers_s = median_low(times_s.values()) if times_s else inf
        for rank, time_s in times_s.items():
            ratios.setdefault(rank, []).append(time_s / peers_s)
            best_s[rank] = min(time_s, best_s.get(rank, time_s))
    if not best_s:
        return {}
    peers_s = median_low(best_s.values())
    ratio = {rank: min(median(ratios[rank]), best_s[rank] / peers_s) for rank in ratios}
    worst_s = max(time_s for times_s in rounds for rank, time_s in times_s.items() if ratio[rank] < least)
    return {
        rank: SlowQuantity(ratio[rank], best_s[rank], peers_s, "", best_s[rank] >= least * worst_s) for rank in ratio
    }


def _slow_load(load: str, own: SlowQuantity | None, clock: SlowQuantity, least: float) -> SlowQuantity | None:
    """What is slow of a rank and load, by its core time if that is known, else by the clock; None where nothing is."""
    text = ""
    if own is not None:
        if own.ratio >= least:
            text = f"{load} costs {own.ratio:.2f} times the core time of its peers: its core is slow, not shared"
            return own._replace(text=text)
        text = f", but {own.ratio:.2f} times the core time: something else runs on its core"
    if clock.ratio < least:
        return None
    words = f"{load} takes {clock.ratio:.2f} times as long as on its peers{text}"
    return clock._replace(text=words, is_contended=own is not None)


def judge_links(
    samples: Mapping[Link, LinkSamples],
    hosts: Sequence[int],
    least_ratio: float = SLOW_LINK,
    *,
    crowded: bool = False,
) -> tuple[dict[Link, SlowQuantity], dict[Link, SlowQuantity]]:
    """Return the directed links that are slow, and those of which that cannot be said.

    Of a slow link the best transfer is slow beside the peers' best, and the median beside the medians, even without all
    that its ends waited for their cores. Of the others only the best transfer is slow, or would not be without that.

    Args:
        samples: of directed links.
        hosts: the host of each rank.
        least_ratio: multiple of the peers' time from which a transfer counts as slow.
        crowded: some ranks share a core.
    """
    best, ordinary = (_links_by(statistic, samples, hosts, least_ratio, crowded=crowded) for statistic in (min, median))
    both = {link for link in best if link in ordinary and not best[link].is_explained}
    slow = {link: best[link]._replace(ratio=min(best[link].ratio, ordinary[link].ratio)) for link in both}
    why = ", but its ends waited for their cores meanwhile"
    unsure = {
        link: how._replace(text=how.text + why * how.is_explained) for link, how in best.items() if link not in both
    }
    return slow, unsure


def _links_by(
    statistic: Callable[[Iterable[float]], float],
    samples: Mapping[Link, LinkSamples],
    hosts: Sequence[int],
    least_ratio: float,
    crowded: bool,
) -> dict[Link, SlowQuantity]:
    """Slow directed links by one statistic of the transfers over each link."""
    found: dict[Link, SlowQuantity] = {}
    for inside in (True, False):
        links = [link for link in samples if (hosts[link[0]] == hosts[link[1]]) == inside]
        if len(links) < 2:
            continue
        own_s = {link: {size: statistic(times_s) for size, times_s in samples[link].times_s.items()} for link in links}
        usual_s = {size: reference(own_s[link][size] for link in links) for size in own_s[links[0]]}
        latency_s = reference(samples[link].latency_s for link in links)
        least = max(least_ratio, SLOW_LINK_STARVED) if inside and crowded else least_ratio
        slow_here: dict[Link, SlowQuantity] = {}
        for link in links:
            slow = _slow_transfer(own_s[link], usual_s, least, crowded)
            late = _slow_latency(samples[link].latency_s, latency_s, crowded)
            if slow and late:
                slow_here[link] = slow._replace(text=f"{slow.text}; {late.text}")
            elif found_here := slow or late:
                slow_here[link] = found_here
        alone_s = {link: {size: median(samples[link].least_s(size)) for size in usual_s} for link in links}
        healthy = [alone_s[link] for link in links if link not in slow_here]
        worst_s = {size: max((times_s[size] for times_s in healthy), default=inf) for size in usual_s}
        latest_s = max((samples[link].latency_s for link in links if link not in slow_here), default=inf)
        best_s = {size: reference(min(samples[link].times_s[size]) for link in links) for size in usual_s}
        for link, slow in slow_here.items():
            is_clear = all(alone_s[link][size] >= least * worst_s[size] for size in usual_s)
            late = _slow_latency(samples[link].latency_s, latency_s, crowded)
            found[link] = slow._replace(
                is_clear=is_clear or bool(late and _slow_latency(samples[link].latency_s, latest_s, crowded)),
                is_explained=not late and not _slow_transfer(alone_s[link], best_s, least, crowded),
            )
    return found


def _slow_transfer(
    own_s: Mapping[int, float], usual_s: Mapping[int, float], least_ratio: float, crowded: bool
) -> SlowQuantity | None:
    ratios = sorted((own_s[size] / usual_s[size], size) for size in usual_s)
    ratio, size = ratios[len(ratios) // 2]
    excess_s = own_s[size] - usual_s[size]
    if ratio < least_ratio or excess_s < (LEAST_TRANSFER_CROWDED_S if crowded else LEAST_TRANSFER_S):
        return None
    text = f"{size / own_s[size] / 1e9:.3g} GB/s at best, its peers {size / usual_s[size] / 1e9:.3g} GB/s"
    return SlowQuantity(ratio, own_s[size], usual_s[size], text)


def _slow_latency(own_s: float, peers_s: float, crowded: bool) -> SlowQuantity | None:
    least_s = LEAST_LATENCY_CROWDED_S if crowded else LEAST_LATENCY_S
    # Between hosts whose clocks differ, a small latency may come out as none.
    ratio = own_s / max(peers_s, 1e-6)
    if ratio < SLOW_LATENCY or own_s - peers_s < least_s:
        return None
    return SlowQuantity(
        ratio, own_s, peers_s, f"latency {own_s * 1e3:.3g} ms, its peers {max(peers_s, 0.0) * 1e3:.3g} ms"
    )


def reference(values: Iterable[float]) -> float:
    """What is usual among `values`: the middle one; the lower quartile of few, half of which one rank may have."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 4] if len(ordered) <= FEW_LINKS else median_low(ordered)


class Finding(NamedTuple):
    """Something slow, with the evidence.

    Attributes:
        kind: "compute" (a rank), "contention" (a rank whose core other work uses), "links" (all links of a rank, in a
            direction at least: its network card), or "link".
        ranks, links: what it is: a tuple of ranks, of directed links (src, dst); the other one is empty.
        when: "alone", or "together": only while computing and communicating at once.
        ratio: its time over its peers'.
        evidence: in words.
    """

    kind: str
    ranks: tuple[int, ...]
    links: tuple[Link, ...]
    when: str
    ratio: float
    evidence: str

    @property
    def about(self) -> str:
        """What it is, in words."""
        when = " while it computes and transfers at once" if self.when == "together" else ""
        if self.kind == "link":
            return f"link {self.links[0][0]} -> {self.links[0][1]}{when}"
        what = {"compute": "computing", "contention": "whose core other work uses", "links": "its links"}
        return f"rank {self.ranks[0]}, {what[self.kind]}{when}"


def findings(
    ranks: Mapping[int, SlowQuantity], links: Mapping[Link, SlowQuantity], tested: Collection[Link], when: str
) -> tuple[Finding, ...]:
    """The Findings of slow ranks and of slow links among the directed links `tested`."""
    kinds = {rank: "contention" if slow.is_contended else "compute" for rank, slow in ranks.items()}
    found = [Finding(kinds[rank], (rank,), (), when, slow.ratio, slow.text) for rank, slow in sorted(ranks.items())]
    cards, cables = split_blame(tested, set(links))
    for rank in cards:
        own = [link for link in links if rank in link]
        worst = max(own, key=lambda link: links[link].ratio)
        text = f"{len(own)} of its {sum(rank in link for link in tested)} links are slow; {_arrow(worst)}: "
        found.append(Finding("links", (rank,), (), when, links[worst].ratio, text + links[worst].text))
    found += [Finding("link", (), (link,), when, links[link].ratio, links[link].text) for link in cables]
    return tuple(found)


def _arrow(link: Link) -> str:
    return f"{link[0]} -> {link[1]}"
