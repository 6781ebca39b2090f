"""The validation of suspects alone, while the job is paused: a few peers beside them, and how severe it is."""

from math import nan
from statistics import mean, median, median_low

import numpy as np

from lanterne.failslow.validate import loads as gemm
from lanterne.failslow.validate.probe import Probe
from lanterne.failslow.validate.validate import Injected, validate

# Healthy ones beside the suspects; fewer links, down to one, where suspects are many, most of which are healthy.
WITNESSES = 3
QUICK = {"limit_s": 0.2, "repetitions": 2, "thorough": False}
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

    def __init__(self, comm, transport=None, nbytes=1 << 16, slowdown=lambda: 1.0):
        self.comm, self._nbytes, self._slowdown = comm, nbytes, slowdown
        wire = comm.split(0, comm.rank, transport) if transport is not None else None
        self._probe = Probe(comm.split(0, comm.rank), gemm.name_of_device(), wire)
        self._load, self._usual_s = gemm.loads(which=(gemm.USUAL,))[0], nan

    def examine(self, suspects):
        """{name: severity} of suspects: the factor of a "rank R"'s time, the seconds more of a "link A-B"; 0: well.

        Every rank has the result. Who cannot be tested is absent; nan: a busy machine may hide or explain it.
        """
        everyone, slowdown = range(self.comm.world_size), self._slowdown()
        ranks = [int(name.split()[1]) for name in suspects if name.startswith("rank")]
        links = [ends(name) for name in suspects if name.startswith("link")]
        peers = [rank for rank in everyone if rank not in ranks][:WITNESSES]
        others = [(a, b) for a in everyone for b in everyone if a < b and (a, b) not in links]
        # Witnesses that have no end in common with a suspect, where there are such.
        taken = {end for link in links for end in link}
        others.sort(key=lambda link: len(taken & set(link)))
        witnesses = others[: max(1, WITNESSES + 1 - len(links))]
        ranks, links = ranks and peers and ranks + peers, links and witnesses and links + witnesses
        if not ranks and not links:
            return {}
        found = validate(
            self.comm, ranks, links, sizes=(self._nbytes,), probe=self._probe,
            injected=Injected(slowdown, slowdown), **QUICK,
        )  # fmt: skip
        return severities(found, suspects)

    def close(self):
        """Release its communicators."""
        self._probe.close()

    def compare(self, peers):
        """The ranks `peers` tell what `retest` compares with."""
        table = np.empty(self.comm.world_size)
        self.comm.all_gather(np.array([self._load_s()]), table)
        self._usual_s = median_low(table[list(peers)].tolist())

    def retest(self):
        """The factor of this rank's core time now over its peers' at the last comparison; only this rank calls it."""
        return self._load_s() / self._usual_s

    def _load_s(self):
        return min(gemm.sample(self._load, SAMPLE_S, self._slowdown()).cpu_s)


def severities(found, suspects):
    """{name: severity} of those of `suspects` that a Validation tested, as Examiner.examine has it."""
    ranks = dict.fromkeys((record["rank"] for record in found.compute), 0.0)
    links = dict.fromkeys((link for batch in found.passes for link in batch), 0.0)
    for finding in found.unsure:
        ranks |= dict.fromkeys(_ranks(finding), nan)
        links |= dict.fromkeys(_links(finding, links), nan)
    for finding in found.findings:
        ranks |= {rank: finding.ratio for rank in _ranks(finding)}
        links |= {link: _excess_s(found, link, finding.when) for link in _links(finding, links)}
    measured = {f"rank {rank}": factor for rank, factor in ranks.items()}
    measured |= {f"link {a}-{b}": seconds for (a, b), seconds in links.items()}
    return {name: measured[name] for name in suspects if name in measured}


def _ranks(finding):
    """Those whose computing it is about."""
    return finding.ranks if finding.kind in ("compute", "contention") else ()


def _links(finding, links):
    """Those of `links` that it is about, in either direction."""
    card = finding.ranks if finding.kind == "links" else ()
    return [link for link in links if {link, link[::-1]} & set(finding.links) or set(card) & set(link)]


def _excess_s(found, link, when):
    """Seconds that a transfer over `link` takes more than over the others, of both ways the mean."""
    best_s = {}
    for record in found.links:
        if record["when"] == when:
            way = record["src"], record["dst"]
            best_s[way] = min(best_s.get(way, np.inf), *record["time_s"])
    own = (link, link[::-1])
    usual_s = median(seconds for way, seconds in best_s.items() if way not in own)
    return max(mean(best_s[way] for way in own) - usual_s, 0.0)


def ends(name):
    """(a, b) of "link a-b"."""
    return tuple(map(int, name.split()[1].split("-")))
