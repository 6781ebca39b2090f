"""What the measurements of a validation prove: which ranks compute slowly, which links are slow. Pure functions.

Every rank and link is compared with its peers only: devices of one name, links of one kind (within a host, or between
hosts). Nothing is slow by itself: where there is no peer, there is no verdict.
"""

from math import isnan
from statistics import median, median_low
from typing import NamedTuple

from .links import split_blame

# Multiples of the peers' time from which something counts as slow.
SLOW_COMPUTE = 1.2
# Of the median link; half the bandwidth of a shared link reads as 2.
SLOW_LINK = 1.3
SLOW_COMPUTE_STARVED = 1.5
SLOW_LATENCY = 3.0
# A repetition that took its core time, and this much by the clock at most, was not interrupted.
UNDISTURBED = 1.1
# While computing, a rank without a second core moves its data whenever it gets its turn.
SLOW_LINK_STARVED = 2.5
# A latency must also exceed the peers' by this: scheduling explains less on a core of one's own, a tick where cores are
# shared.
LEAST_LATENCY_S, LEAST_LATENCY_CROWDED_S = 200e-6, 4e-3
# Within a host whose ranks share cores, a transfer takes as long as both ends' turns on them do.
SLOW_LINK_CROWDED = 2.0
# The same for a transfer, of which the best of several counts.
LEAST_TRANSFER_S, LEAST_TRANSFER_CROWDED_S = 100e-6, 1e-3
# Up to the directions between 4 ranks, one slow network card makes half of all links slow, or more.
FEW_LINKS = 12


class Slow(NamedTuple):
    """One quantity that exceeds its peers': `ratio` times, `own_s` against `peers_s`; `text` says it in words."""

    ratio: float
    own_s: float
    peers_s: float
    text: str


def slow_ranks(samples, devices, cores, starved=False):
    """Ranks that compute slowly.

    Args:
        samples: {(rank, load name): Samples}.
        devices: the device of each rank; equal ones are peers.
        cores: (machine, cores) of each rank, equal where ranks share their cores: what else runs there slows all of
            them by the clock, so they are judged by the clock together, and by their own core time one by one. Core
            time counts only of repetitions that nothing interrupted: others find their caches cold.
        starved: none can be expected to be uninterrupted: all count, and more is needed.

    Returns:
        {rank: Slow}, the worst load of each slow rank.
    """
    found = {}
    for load in dict.fromkeys(name for _, name in samples):
        for device in set(devices):
            ranks = [r for r, name in samples if name == load and devices[r] == device and samples[r, name].wall_s]
            timed = not any(isnan(samples[rank, load].cpu_s[0]) for rank in ranks)
            own_s = {rank: core_time_s(samples[rank, load], starved) for rank in ranks} if timed else {}
            own_s = {rank: time_s for rank, time_s in own_s.items() if time_s is not None}
            clock_s = {rank: median(samples[rank, load].wall_s) for rank in ranks}
            if timed:
                shared = {rank: [other for other in ranks if cores[other] == cores[rank]] for rank in ranks}
                clock_s = {rank: median(clock_s[other] for other in shared[rank]) for rank in ranks}
            for rank in ranks if len(ranks) > 1 else ():
                slow = _slow_load(load, rank, own_s, clock_s, SLOW_COMPUTE_STARVED if starved else SLOW_COMPUTE)
                if slow and timed and rank not in own_s:
                    slow = slow._replace(text=f"{slow.text}; it never had its core to itself")
                if slow and (rank not in found or found[rank].ratio < slow.ratio):
                    found[rank] = slow
    return found


def core_time_s(samples, starved=False):
    """The least core time of a repetition that nothing interrupted; None where every one was."""
    pairs = zip(samples.wall_s, samples.cpu_s, strict=True)
    return min((cpu_s for wall_s, cpu_s in pairs if starved or wall_s <= UNDISTURBED * cpu_s), default=None)


def _slow_load(load, rank, own_s, clock_s, least_ratio):
    text = ""
    if rank in own_s:
        peers_s = median_low(own_s.values())
        ratio = own_s[rank] / peers_s
        if ratio >= least_ratio:
            text = f"{load} costs {ratio:.2f} times the core time of its peers: its core is slow, not shared"
            return Slow(ratio, own_s[rank], peers_s, text)
        text = f", but {ratio:.2f} times the core time: something else runs on its core"
    peers_s = median_low(clock_s.values())
    ratio = clock_s[rank] / peers_s
    if ratio < least_ratio:
        return None
    return Slow(ratio, clock_s[rank], peers_s, f"{load} takes {ratio:.2f} times as long as on its peers{text}")


def slow_links(samples, hosts, least_ratio=SLOW_LINK, crowded=False):
    """Directed links that are slow: even the best transfer of theirs takes longer than what is usual among their peers.

    Args:
        samples: {(src, dst): LinkSamples}.
        hosts: the host of each rank.
        least_ratio: multiple of the peers' time from which a transfer counts as slow.
        crowded: some ranks share a core.

    Returns:
        {(src, dst): Slow}.
    """
    found = {}
    for inside in (True, False):
        links = [link for link in samples if (hosts[link[0]] == hosts[link[1]]) == inside]
        if len(links) < 2:
            continue
        sizes = samples[links[0]].times_s
        usual_s = {size: reference(median(samples[link].times_s[size]) for link in links) for size in sizes}
        latency_s = reference(samples[link].latency_s for link in links)
        for link in links:
            least = max(least_ratio, SLOW_LINK_CROWDED) if inside and crowded else least_ratio
            slow = _slow_transfer(samples[link].times_s, usual_s, least, crowded)
            late = _slow_latency(samples[link].latency_s, latency_s, crowded)
            if slow and late:
                found[link] = slow._replace(text=f"{slow.text}; {late.text}")
            elif slow or late:
                found[link] = slow or late
    return found


def _slow_transfer(times_s, usual_s, least_ratio, crowded):
    ratios = sorted((min(times_s[size]) / usual_s[size], size) for size in usual_s)
    ratio, size = ratios[len(ratios) // 2]
    own_s, peers_s = min(times_s[size]), usual_s[size]
    if ratio < least_ratio or own_s - peers_s < (LEAST_TRANSFER_CROWDED_S if crowded else LEAST_TRANSFER_S):
        return None
    text = f"{size / own_s / 1e9:.3g} GB/s at best, its peers {size / peers_s / 1e9:.3g} GB/s"
    return Slow(ratio, own_s, peers_s, text)


def _slow_latency(own_s, peers_s, crowded):
    least_s = LEAST_LATENCY_CROWDED_S if crowded else LEAST_LATENCY_S
    # Between hosts whose clocks differ, a small latency may come out as none.
    ratio = own_s / max(peers_s, 1e-6)
    if ratio < SLOW_LATENCY or own_s - peers_s < least_s:
        return None
    return Slow(ratio, own_s, peers_s, f"latency {own_s * 1e3:.3g} ms, its peers {max(peers_s, 0.0) * 1e3:.3g} ms")


def reference(values):
    """What is usual among `values`: the middle one; the lower quartile of few, half of which one rank may have."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 4] if len(ordered) <= FEW_LINKS else median_low(ordered)


class Finding(NamedTuple):
    """Something slow, with the evidence.

    Attributes:
        kind: "compute" (a rank), "links" (all links of a rank, in a direction at least: its network card), or "link".
        ranks, links: what it is: a tuple of ranks, of directed links (src, dst); the other one is empty.
        when: "alone", or "together": only while computing and communicating at once.
        ratio: its time over its peers'.
        evidence: in words.
    """

    kind: str
    ranks: tuple
    links: tuple
    when: str
    ratio: float
    evidence: str


def findings(ranks, links, tested, when):
    """The Findings of slow ranks {rank: Slow} and slow links {(src, dst): Slow} among the directed links `tested`."""
    found = [Finding("compute", (rank,), (), when, slow.ratio, slow.text) for rank, slow in sorted(ranks.items())]
    cards, cables = split_blame(tested, set(links))
    for rank in cards:
        own = [link for link in links if rank in link]
        worst = max(own, key=lambda link: links[link].ratio)
        text = f"{len(own)} of its {sum(rank in link for link in tested)} links are slow; {_arrow(worst)}: "
        found.append(Finding("links", (rank,), (), when, links[worst].ratio, text + links[worst].text))
    found += [Finding("link", (), (link,), when, links[link].ratio, links[link].text) for link in cables]
    return tuple(found)


def _arrow(link):
    return f"{link[0]} -> {link[1]}"
