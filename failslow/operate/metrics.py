"""A job's status as metrics: values, and how Prometheus (text) and OpenTelemetry (OTLP, JSON) want them written."""

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

    Attributes: `name`, in Prometheus' manner: base units, counters end with _total; `kind`: "gauge" or "counter";
    `text`, what it is; `unit` of UCUM; `samples`: (labels, value).
    """

    name: str
    kind: str
    text: str
    unit: str
    samples: tuple[tuple[Mapping[str, str], float], ...]


def job_metrics(status: Mapping[str, Any]) -> list[Metric]:
    """The Metrics of a job's status; what it does not know is left out."""
    run = {"run": str(status["run"])}
    found: list[Metric] = []

    def add(name: str, kind: str, text: str, unit: str, samples: Iterable[tuple[Mapping[str, Any], Any]]) -> None:
        known = tuple(
            (run | {key: str(label) for key, label in labels.items() if label is not None}, float(value))
            for labels, value in samples
            if value is not None
        )
        if known:
            found.append(Metric(f"lanterne_{name}", kind, text, unit, known))

    about = {"program": status["program"], "host": status["host"]}
    add("job_info", "gauge", "The job that is watched; always 1.", "1", [(about, 1)])
    for name, text in (("ranks", "Ranks of the job."), ("reported", "Ranks of which calls were recorded.")):
        add(name, "gauge", text, "1", [({}, status[name])])
    times = status["iterations"]
    add("iterations_total", "counter", "Iterations up to now.", "1", [({}, times["count"])])
    add("iteration_seconds_total", "counter", "Time of the iterations watched.", "s", [({}, times["total_s"])])
    for name, text in (
        ("last", "What the latest iteration took."),
        ("median", "Median of the latest iterations."),
        ("usual", "What an iteration took before it became slow, or takes now where it is not."),
    ):
        add(f"iteration_{name}_seconds", "gauge", text, "s", [({}, times[f"{name}_s"])])
    add("slow_ratio", "gauge", "Level of iteration times over the usual one; 1: not slow.", "1", [({}, times["ratio"])])
    add("slow", "gauge", "Whether the job is in a slow spell.", "1", [({}, times["slow"])])
    incidents: Sequence[Mapping[str, Any]] = status["incidents"]
    kinds = ("slow", "hang")
    count = [({"kind": kind}, status["counts"].get(kind, 0)) for kind in kinds]
    add("incidents_total", "counter", "Incidents up to now.", "1", count)
    lasting = [one for one in incidents if one["lasts"]]
    open_now = [({"kind": kind}, sum(one["kind"] == kind for one in lasting)) for kind in kinds]
    add("incidents_open", "gauge", "Incidents that last.", "1", open_now)
    blamed = {(one["kind"], who["rank"]): who for one in lasting for who in one["ranks"]}
    named = [
        ({"kind": kind, "rank": rank, **{key: who.get(key) for key in ("host", "gpu", "nic")}}, 1)
        for (kind, rank), who in blamed.items()
    ]
    add("rank_blamed", "gauge", "Ranks that lasting incidents name; always 1.", "1", named)
    ranks = sorted(status["late"], key=lambda one: -(one["late_s"] or 0.0))[:MAX_RANKS]
    for name, kind, key, unit, text in (
        ("rank_late_seconds", "gauge", "late_s", "s", "By how much a rank comes late in an iteration, its median."),
        ("rank_last_total", "counter", "last", "1", "Calls to which a rank came last."),
        ("rank_waited_seconds_total", "counter", "waited_s", "s", "How long a rank has waited for others in calls."),
    ):
        add(name, kind, text, unit, [({"rank": one["rank"], "host": one["host"]}, one[key]) for one in ranks])
    saved, early = status.get("saved_s"), status.get("begun_early")
    add("saved_seconds", "gauge", "Time that mitigation has saved, by its forecast.", "s", [({}, saved)])
    add("calls_begun_early_total", "counter", "Calls that began without the late rank.", "1", [({}, early)])
    limits = [({"name": name}, value) for name, value in status["thresholds"].items()]
    add("threshold", "gauge", "Thresholds that hold now.", "1", limits)
    for name, kind, unit, text, samples in _host_samples(status["telemetry"]):
        add(name, kind, text, unit, samples)
    return found


def _host_samples(
    hosts: Mapping[str, Mapping[str, Any]],
) -> Iterable[tuple[str, str, str, str, list[tuple[dict[str, Any], Any]]]]:
    """(name, kind, unit, text, samples) of what hosts tell of themselves."""
    pressure = [
        ({"host": host, "resource": resource}, share)
        for host, told in hosts.items()
        for resource, share in told.get("pressure", {}).items()
    ]
    yield "host_pressure_ratio", "gauge", "1", "Share of 10 s in which some work waited for a resource.", pressure
    nics = [(host, name, nic) for host, told in hosts.items() for name, nic in told.get("nics", {}).items()]
    for key, unit, text in (
        ("rx_bytes", "By", "Bytes received."),
        ("tx_bytes", "By", "Bytes sent."),
        ("errors", "1", "Errors and drops."),
        ("downs", "1", "How often the carrier changed."),
    ):
        name = f"nic_{key}_total"
        yield name, "counter", unit, text, [({"host": host, "nic": one}, nic.get(key)) for host, one, nic in nics]
    gpus = [(host, gpu) for host, told in hosts.items() for gpu in told.get("gpus", ())]
    for key, name, factor, unit, text in (
        ("celsius", "gpu_temperature_celsius", 1, "Cel", "Temperature."),
        ("sm_mhz", "gpu_sm_hertz", 1_000_000, "Hz", "Clock of the multiprocessors."),
        ("throttled", "gpu_throttled", 1, "1", "Whether heat or power hold the clocks down."),
    ):
        samples = [({"host": host, "gpu": gpu["index"]}, factor * gpu[key]) for host, gpu in gpus if key in gpu]
        yield name, "gauge", unit, text, samples


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


def otlp(metrics: Iterable[Metric], resource: Mapping[str, str], now_ns: int, since_ns: int) -> dict[str, Any]:
    """An ExportMetricsServiceRequest of OpenTelemetry's OTLP, as its JSON has it.

    Args:
        resource: attributes of what is measured, such as service.name.
        now_ns, since_ns: of the Unix clock: when this was measured, and since when counters count.
    """
    made = []
    for metric in metrics:
        points = [
            {
                "attributes": _attributes(labels),
                "startTimeUnixNano": str(since_ns),
                "timeUnixNano": str(now_ns),
                "asDouble": value,
            }
            for labels, value in metric.samples
            if isfinite(value)
        ]
        data: dict[str, Any] = {"dataPoints": points}
        if metric.kind == "counter":
            data |= {"aggregationTemporality": 2, "isMonotonic": True}
        name = metric.name.removesuffix("_total")
        about = {"name": name, "description": metric.text, "unit": metric.unit}
        made.append(about | {"sum" if metric.kind == "counter" else "gauge": data})
    scope = {"scope": {"name": "lanterne"}, "metrics": made}
    return {"resourceMetrics": [{"resource": {"attributes": _attributes(resource)}, "scopeMetrics": [scope]}]}


def _attributes(labels: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"key": key, "value": {"stringValue": text}} for key, text in labels.items()]
