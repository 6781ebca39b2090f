"""Whether a node may join: what a sweep of `validate` measured of it, against its own sweeps before and other nodes'.

A sweep's values are times (seconds; less is better): of each load alone and together with transfers, and what a byte
takes on a link and its latency, within the host and to others. Kept in a history (history.py) as entries `what`:
"sweep", `host`, `time_s`, `job`, `values`.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from lanterne.failslow.operate.history import SCHEMA_VERSION, patterns

# So many of the latest sweeps of a host tell what is usual of it; so many of other hosts, where it has too few.
# Of healthy hosts whose sweeps differ by 5 %, one sweep before would refuse a quarter, five 1 in 200 (simulated).
OWN_SWEEPS, LEAST_OWN = 16, 5
OTHER_SWEEPS, LEAST_OTHERS = 64, 3
# Worse by this, and by so many times the usual deviation, is worse: than the usual sweep, and by WORSE than the worst
# as well, but for one sweep in SPARED that something had disturbed.
WORSE, DEVIATIONS, SPARED = 1.15, 4.0, 8


def sweep_values(
    hosts: Mapping[int, str], compute: Iterable[Mapping[str, Any]], links: Iterable[Mapping[str, Any]]
) -> dict[str, dict[str, float]]:
    """{host: {name: seconds}} of a Validation.

    Args:
        hosts: rank -> host.
        compute, links: of Validation.
    """
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    # What was measured again counts as it was then.
    latest = {(one["rank"], one["load"], one["when"]): one for one in compute}
    for (rank, load, when), one in latest.items():
        found[hosts[rank]][f"{load}, {when}"].append(median(one["wall_s"]))
    for one in links:
        ends = hosts[one["src"]], hosts[one["dst"]]
        where = "within" if ends[0] == ends[1] else "between hosts"
        for host in dict.fromkeys(ends):
            found[host][f"a byte {where}, {one['when']}"].append(min(one["time_s"]) / one["nbytes"])
            found[host][f"latency {where}, {one['when']}"].append(one["latency_s"])
    return {host: {name: median(some) for name, some in values.items()} for host, values in found.items()}


def sweep_entry(host: str, values: Mapping[str, float], job: str, time_s: float) -> dict[str, Any]:
    """The entry of a sweep."""
    about = {"schema_version": SCHEMA_VERSION, "what": "sweep", "time_s": time_s}
    return about | {"job": job, "host": host, "values": dict(values)}


def judge_sweep(entries: Sequence[Mapping[str, Any]], host: str, values: Mapping[str, float]) -> list[str]:
    """What speaks against `host`, in words, by the `entries` of a history and the `values` of its sweep now."""
    own, others = _sweeps(entries, host)
    found = []
    for one in patterns(entries):
        if one.host == host and one.pattern == "chronic":
            found.append(f"it is chronic: named in {one.named_in} of its {one.jobs} jobs, the last time: {one.text}")
    for name, now in values.items():
        for whose, some, least in (("its own", own, LEAST_OWN), ("other hosts'", others, LEAST_OTHERS)):
            before = [entry["values"][name] for entry in some if _is_time(entry["values"].get(name))]
            if len(before) < least:
                continue
            usual = median(before)
            deviation = 1.4826 * median(abs(value - usual) for value in before)
            worst = sorted(before)[-1 - len(before) // SPARED]
            if now > WORSE * max(usual, worst) and now > usual + DEVIATIONS * deviation:
                found.append(f"{name}: {now / usual:.2f} times {whose} usual ({len(before)} sweeps)")
            # What it has of its own says more.
            break
    return found


def too_few(entries: Sequence[Mapping[str, Any]], host: str) -> str:
    """Why the `entries` of a history have no sweeps to hold `host`'s against, in words; empty where they do."""
    own, others = map(len, _sweeps(entries, host))
    if own >= LEAST_OWN or others >= LEAST_OTHERS:
        return ""
    needed = f"{LEAST_OWN} or {LEAST_OTHERS}"
    return f"compared with no sweep: {own} of its own are known, {others} of other hosts, of {needed} that are needed"


def _sweeps(entries: Sequence[Mapping[str, Any]], host: str) -> tuple[Sequence[Mapping[str, Any]], ...]:
    """The latest sweeps (of `host`, of others)."""
    sweeps = [entry for entry in entries if entry["what"] == "sweep"]
    own = [entry for entry in sweeps if entry["host"] == host][-OWN_SWEEPS:]
    return own, [entry for entry in sweeps if entry["host"] != host][-OTHER_SWEEPS:]


def _is_time(value: Any) -> bool:
    # An int may be too large for a float.
    return isinstance(value, (int, float)) and 0.0 < value <= sys.float_info.max
