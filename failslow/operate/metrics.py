"""A job's status as metrics, in Prometheus' text format."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, isnan
from typing import Any

# Ranks that have lines of their own, the latest of more.
MAX_RANKS = 1024
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Metric:
    """A family of samples.

    Attributes:
        name: with Prometheus' endings: base units, _total for counters.
        kind: "gauge" or "counter".
        text: its help.
        samples: (labels, value).
    """

    name: str
    kind: str
    text: str
    samples: tuple[tuple[Mapping[str, str], float], ...]


def job_metrics(status: Mapping[str, Any]) -> list[Metric]:
    """The Metrics of a job's status; what it does not know is left out."""
    run = {"run": str(status["run"])}
    found: list[Metric] = []

    def add(name: str, kind: str, text: str, samples: Iterable[tuple[Mapping[str, Any], Any]]) -> None:
        known = tuple(
            (run | {key: str(label) for key, label in labels.items() if label is not None}, float(value))
            for labels, value in samples
            if value is not None
        )
        if known:
            found.append(Metric(f"lanterne_{name}", kind, text, known))

    about = {"program": status["program"], "host": status["host"]}
    add("job_info", "gauge", "The job that is watched; always 1.", [(about, 1)])
    for name, text in (("ranks", "Ranks of the job."), ("reported", "Ranks of which calls were recorded.")):
        add(name, "gauge", text, [({}, status[name])])
    times = status["iterations"]
    add("iterations_total", "counter", "Iterations up to now.", [({}, times["count"])])
    add("iteration_seconds_total", "counter", "Time of the iterations watched.", [({}, times["total_s"])])
    for name, text in (
        ("last", "What the latest iteration took."),
        ("median", "Median of the latest iterations."),
        ("usual", "What an iteration took before it became slow, or takes now where it is not."),
    ):
        add(f"iteration_{name}_seconds", "gauge", text, [({}, times[f"{name}_s"])])
    add("slow_ratio", "gauge", "Level of iteration times over the usual one; 1: not slow.", [({}, times["ratio"])])
    add("slow", "gauge", "Whether the job is in a slow spell.", [({}, times["slow"])])
    incidents: Sequence[Mapping[str, Any]] = status["incidents"]
    kinds = ("slow", "hang")
    count = [({"kind": kind}, status["counts"].get(kind, 0)) for kind in kinds]
    add("incidents_total", "counter", "Incidents up to now.", count)
    lasting = [one for one in incidents if one["lasts"]]
    open_now = [({"kind": kind}, sum(one["kind"] == kind for one in lasting)) for kind in kinds]
    add("incidents_open", "gauge", "Incidents that last.", open_now)
    blamed = {(one["kind"], who["rank"]): who for one in lasting for who in one["ranks"]}
    named = [
        ({"kind": kind, "rank": rank, **{key: who.get(key) for key in ("host", "gpu", "nic")}}, 1)
        for (kind, rank), who in blamed.items()
    ]
    add("rank_blamed", "gauge", "Ranks that lasting incidents name; always 1.", named)
    ranks = sorted(status["late"], key=lambda one: -(one["late_s"] or 0.0))[:MAX_RANKS]
    for name, kind, key, text in (
        ("rank_late_seconds", "gauge", "late_s", "By how much a rank comes late in an iteration, its median."),
        ("rank_last_total", "counter", "last", "Calls to which a rank came last."),
        ("rank_waited_seconds_total", "counter", "waited_s", "How long a rank has waited for others in calls."),
    ):
        add(name, kind, text, [({"rank": one["rank"], "host": one["host"]}, one[key]) for one in ranks])
    saved, early = status.get("saved_s"), status.get("begun_early")
    add("saved_seconds", "gauge", "Time that mitigation has saved, by its forecast.", [({}, saved)])
    add("calls_begun_early_total", "counter", "Calls that began without the late rank.", [({}, early)])
    limits = [({"name": name}, value) for name, value in status["thresholds"].items()]
    add("threshold", "gauge", "Thresholds that hold now.", limits)
    for name, kind, text, samples in _host_samples(status["telemetry"]):
        add(name, kind, text, samples)
    return found


def _host_samples(
    hosts: Mapping[str, Mapping[str, Any]],
) -> Iterable[tuple[str, str, str, list[tuple[dict[str, Any], Any]]]]:
    """Return (name, kind, text, samples) of the hosts' own figures."""
    pressure = [
        ({"host": host, "resource": resource}, share)
        for host, told in hosts.items()
        for resource, share in told.get("pressure", {}).items()
    ]
    yield "host_pressure_ratio", "gauge", "Share of 10 s in which some work waited for a resource.", pressure
    nics = [(host, name, nic) for host, told in hosts.items() for name, nic in told.get("nics", {}).items()]
    for key, text in (
        ("rx_bytes", "Bytes received."),
        ("tx_bytes", "Bytes sent."),
        ("errors", "Errors and drops."),
        ("downs", "How often the carrier changed."),
    ):
        name = f"nic_{key}_total"
        yield name, "counter", text, [({"host": host, "nic": one}, nic.get(key)) for host, one, nic in nics]
    gpus = [(host, gpu) for host, told in hosts.items() for gpu in told.get("gpus", ())]
    for key, name, factor, text in (
        ("celsius", "gpu_temperature_celsius", 1, "Temperature."),
        ("sm_mhz", "gpu_sm_hertz", 1_000_000, "Clock of the multiprocessors."),
        ("throttled", "gpu_throttled", 1, "Whether heat or power hold the clocks down."),
    ):
        samples = [({"host": host, "gpu": gpu["index"]}, factor * gpu[key]) for host, gpu in gpus if key in gpu]
        yield name, "gauge", text, samples


def exposition(metrics: Iterable[Metric]) -> str:
    """Prometheus' text format, version 0.0.4. Metrics of one name become one family."""
    families: dict[str, list[Metric]] = {}
    for metric in metrics:
        families.setdefault(metric.name, []).append(metric)
    lines = []
    for name, some in families.items():
        lines += [f"# HELP {name} {_escape(some[0].text)}", f"# TYPE {name} {some[0].kind}"]
        for labels, value in (sample for metric in some for sample in metric.samples):
            inside = ",".join(f'{key}="{_escape(label, quote=True)}"' for key, label in labels.items())
            lines.append(f"{name}{{{inside}}} {_number(value)}" if inside else f"{name} {_number(value)}")
    return "\n".join(lines) + "\n"


def _escape(text: str, *, quote: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quote else text


def _number(value: float) -> str:
    if isnan(value):
        return "NaN"
    if not isfinite(value):
        return "+Inf" if value == inf else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
