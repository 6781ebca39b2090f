"""The validation of suspects alone, while the job is paused: a few peers beside them, and how severe it is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from math import nan
from statistics import mean, median, median_low
from typing import TYPE_CHECKING

import numpy as np

from lanterne.failslow.validate import loads as gemm
from lanterne.failslow.validate.judge import Finding
from lanterne.failslow.validate.links import WITNESSES, Link
from lanterne.failslow.validate.probe import Probe
from lanterne.failslow.validate.validate import Injected, validate_suspects
from lanterne.failslow.validate.validation import Validation
from lanterne.pipeline.adapt.suspect import Suspect

if TYPE_CHECKING:
    from lanterne.collectives.communicator import Communicator
    from lanterne.transport.base import Transport

LIMIT_S, REPETITIONS = 0.2, 2
SAMPLE_S = 5e-3


class Examiner:
    """One rank's end; every rank makes the same calls.

    Args:
        comm: the Communicator of all ranks.
        transport: what the work goes over; None for that of `comm`.
        nbytes: of the work's messages.
        slowdown: a function that gives the factor of this rank's computing, for experiments.

    Cost: a few small collectives and 15 ms for a rank; for a link some ms and five times its delay.
    """

    def __init__(
        self,
        comm: Communicator,
        transport: Transport | None = None,
        nbytes: int = 1 << 16,
        slowdown: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self.comm = comm
        self._nbytes = nbytes
        self._slowdown = slowdown
        wire = comm.split(0, comm.rank, transport) if transport is not None else None
        self._probe = Probe(comm.split(0, comm.rank), gemm.name_of_device(), wire)
        self._load = gemm.loads(which=(gemm.USUAL,))[0]
        self._usual_s = nan

    def examine(self, suspects: Sequence[Suspect]) -> dict[Suspect, float]:
        """The severities of suspects: the factor of a rank's time, the seconds more of a link; 0: well.

        Every rank has the result. What cannot be tested is absent; nan: a busy machine may hide or explain it.
        """
        everyone, slowdown = range(self.comm.world_size), self._slowdown()
        ranks = [one.ends[0] for one in suspects if one.is_rank]
        links = [one.pair() for one in suspects if not one.is_rank]
        peers = [rank for rank in everyone if rank not in ranks][: WITNESSES - 1]
        others = [(a, b) for a in everyone for b in everyone if a < b and (a, b) not in links]
        # Witnesses that have no end in common with a suspect, where there are such.
        taken = {end for link in links for end in link}
        others.sort(key=lambda link: len(taken & set(link)))
        # Fewer, down to one, where suspects are many, most of which are healthy.
        witnesses = others[: max(1, WITNESSES - len(links))]
        ranks = ranks + peers if ranks and peers else []
        links = links + witnesses if links and witnesses else []
        if not ranks and not links:
            return {}
        injected = Injected(slowdown, slowdown)
        found = validate_suspects(self._probe, ranks, links, LIMIT_S, (self._nbytes,), REPETITIONS, injected)
        return severities(found, suspects)

    def close(self) -> None:
        """Release its communicators."""
        self._probe.close()

    def compare(self, peers: Iterable[int]) -> None:
        """The ranks `peers` tell what `retest` compares with."""
        table = np.empty(self.comm.world_size)
        self.comm.all_gather(np.array([self._load_s()]), table)
        self._usual_s = median_low(table[list(peers)].tolist())

    def retest(self) -> float:
        """The factor of this rank's core time now over its peers' at the last comparison; only this rank calls it."""
        return self._load_s() / self._usual_s

    def _load_s(self) -> float:
        return min(gemm.sample(self._load, SAMPLE_S, self._slowdown()).cpu_s)


def severities(found: Validation, suspects: Iterable[Suspect]) -> dict[Suspect, float]:
    """The severities of those of `suspects` that a Validation tested, as Examiner.examine has it."""
    ranks = dict.fromkeys((record["rank"] for record in found.compute), 0.0)
    links = dict.fromkeys((link for batch in found.passes for link in batch), 0.0)
    for finding in found.unsure:
        ranks |= dict.fromkeys(_ranks(finding), nan)
        links |= dict.fromkeys(_links(finding, links), nan)
    for finding in found.findings:
        ranks |= {rank: finding.ratio for rank in _ranks(finding)}
        links |= {link: _excess_s(found, link, finding.when) for link in _links(finding, links)}
    measured = {Suspect.rank(rank): factor for rank, factor in ranks.items()}
    measured |= {Suspect.link(a, b): seconds for (a, b), seconds in links.items()}
    return {one: measured[one] for one in suspects if one in measured}


def _ranks(finding: Finding) -> tuple[int, ...]:
    """The ranks whose computing it is about."""
    return finding.ranks if finding.kind in ("compute", "contention") else ()


def _links(finding: Finding, links: Collection[Link]) -> list[Link]:
    """Those of `links` that it is about, in either direction."""
    card = finding.ranks if finding.kind == "links" else ()
    return [link for link in links if {link, link[::-1]} & set(finding.links) or set(card) & set(link)]


def _excess_s(found: Validation, link: Link, when: str) -> float:
    """Seconds that a transfer over `link` takes more than over the others, of both ways the mean."""
    best_s: dict[Link, float] = {}
    for record in found.links:
        if record["when"] == when:
            way = record["src"], record["dst"]
            best_s[way] = min(best_s.get(way, np.inf), *record["time_s"])
    own = (link, (link[1], link[0]))
    usual_s = median(seconds for way, seconds in best_s.items() if way not in own)
    return max(mean(best_s[way] for way in own) - usual_s, 0.0)
