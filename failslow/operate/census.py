"""A census of probes: how many probing jobs met what slowed them, and for how long.

A probing job sweeps its ranks and links now and then (`lanterne validate --every T --history FILE`), or once. Each
sweep is an entry of a history (history.py), `what`: "probe", with `job`, `time_s`, `every_s` (0: once), `hosts`, and
`slow`: {cause: how many times as long as its peers}.

Paper: Wu et al. (GREYHOUND), section 3, table 1; differs: probes are sweeps, not training, so there is no job
completion time; how slow it was stands in its place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import mean
from typing import TYPE_CHECKING, Any

from lanterne.failslow.operate.history import SCHEMA_VERSION

if TYPE_CHECKING:
    from lanterne.failslow.validate.judge import Finding

# What a job may have met, in the order of the paper's table; a job that met several is one of MULTIPLE.
NONE, CONTENTION, COMPUTING, NETWORK, MULTIPLE = "nothing", "CPU contention", "computing", "network", "several"
CAUSES = (NONE, CONTENTION, COMPUTING, NETWORK, MULTIPLE)
_CAUSE_OF = {"contention": CONTENTION, "compute": COMPUTING, "link": NETWORK, "links": NETWORK}
# Sweeps of a job that are further apart than so many of its periods do not belong to one spell.
GAP_PERIODS = 2.5


@dataclass(frozen=True)
class CensusRow:
    """What jobs on one host, or on several, met of one cause.

    Attributes:
        scale: "1 host" or "several hosts".
        jobs: those that met it and nothing else; of MULTIPLE and NONE as they say.
        probes: sweeps that found it, alone or not.
        spells, spell_s: how often it came, and how long it stayed on average: from the first sweep that found it until
            the next that did not, as far as sweeps tell; 0 s of jobs that sweep once.
        ratio: times as slow as its peers, on average; None of NONE and MULTIPLE.
    """

    scale: str
    cause: str
    jobs: int
    probes: int
    spells: int
    spell_s: float
    ratio: float | None

    def to_json(self) -> dict[str, Any]:
        """As a document."""
        return dict(vars(self))


def probe_entry(
    job: str, time_s: float, every_s: float, hosts: Iterable[str], findings: Iterable[Finding]
) -> dict[str, Any]:
    """Return the entry of a sweep; of several findings of a cause the slowest counts."""
    slow: dict[str, float] = {}
    for finding in findings:
        cause = _CAUSE_OF[finding.kind]
        slow[cause] = max(slow.get(cause, 0.0), float(finding.ratio))
    about = {"schema_version": SCHEMA_VERSION, "what": "probe", "time_s": time_s, "job": job}
    return about | {"every_s": every_s, "hosts": sorted(set(hosts)), "slow": slow}


def census(entries: Iterable[Mapping[str, Any]]) -> list[CensusRow]:
    """Return the rows of all scales that have a probing job, each cause in the order of CAUSES."""
    jobs: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for entry in entries:
        if entry["what"] == "probe":
            jobs[entry["job"]].append(entry)
    scales: dict[str, list[list[Mapping[str, Any]]]] = defaultdict(list)
    for probes in jobs.values():
        hosts = {host for probe in probes for host in probe["hosts"]}
        scales["1 host" if len(hosts) == 1 else "several hosts"].append(sorted(probes, key=lambda one: one["time_s"]))
    return [_row(scale, cause, scales[scale]) for scale in sorted(scales) for cause in CAUSES]


def _row(scale: str, cause: str, jobs: Sequence[Sequence[Mapping[str, Any]]]) -> CensusRow:
    number = sum(_verdict({met for probe in probes for met in probe["slow"]}) == cause for probes in jobs)
    if cause in (NONE, MULTIPLE):
        sweeps = sum(_verdict(probe["slow"]) == cause for probes in jobs for probe in probes)
        return CensusRow(scale, cause, number, sweeps, 0, 0.0, None)
    ratios = [probe["slow"][cause] for probes in jobs for probe in probes if cause in probe["slow"]]
    spells = [spell_s for probes in jobs for spell_s in _spells(probes, cause)]
    lasted_s = mean(spells) if spells else 0.0
    return CensusRow(scale, cause, number, len(ratios), len(spells), lasted_s, mean(ratios) if ratios else None)


def _verdict(causes: Collection[str]) -> str:
    return NONE if not causes else next(iter(causes)) if len(causes) == 1 else MULTIPLE


def _spells(probes: Sequence[Mapping[str, Any]], cause: str) -> list[float]:
    """Return the seconds of each spell in which all sweeps of a job found `cause`."""
    found: list[float] = []
    begun_s: float | None = None
    for probe, following in zip_longest(probes, probes[1:]):
        if cause in probe["slow"] and begun_s is None:
            begun_s = probe["time_s"]
        if begun_s is None:
            continue
        if following is None or following["time_s"] - probe["time_s"] > GAP_PERIODS * probe["every_s"]:
            end_s = probe["time_s"]
        elif cause not in following["slow"]:
            end_s = following["time_s"]
        else:
            continue
        found.append(end_s - begun_s)
        begun_s = None
    return found
