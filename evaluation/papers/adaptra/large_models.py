"""ADAPTRA's models of 30B and 140B: what slow links cost each system, predicted from runs of other models.

Figure 16's links and delays for 30B, and figure 21's nine events for 140B, in the settings of table 2. The profile and
the healthy iteration are those of the authors' runs, whose slow iterations are not looked at. Of 60B nothing is
published, and by table 2 its stages are as long as those of 30B.
"""

import json
import statistics
from collections.abc import Sequence
from typing import Any

from evaluation.papers.adaptra.figure_21 import EVENTS, ITERATIONS, PAPER_MIN, RESTART_S
from evaluation.papers.adaptra.fixed_setting import POLICIES, delegates_of
from evaluation.papers.adaptra.h800 import RUNS
from evaluation.papers.experiment import Columns, Figure, PaperValue, Record
from lanterne.bench.output.bars import Bar, at_most
from lanterne.bench.pipeline.predict import read_calibration
from lanterne.pipeline.calibrate.fit import calibrate, prepare
from lanterne.pipeline.calibrate.parameters import DeviceCalibration
from lanterne.pipeline.calibrate.prediction import Forecast, healthy_run, predict_run, slow_run
from lanterne.pipeline.calibrate.runs import RecordedRun, read_run, read_runs

# Model -> ranks that compute a stage together.
MODELS = {"30B": 2, "140B": 8}
OTHERS = tuple(system for system in POLICIES if system != "ADAPTRA")
# Figure 16: (links, delay in ms).
PLACES = tuple(((link,), delay) for link in (0, 6) for delay in (30, 60))
# Of a run, what another policy or other links would change.
CHANGED = ("id", "policy", "delayed_sends", "delegates", "order", "issue", "slow_ms", "doubtful")
FIGURE_INCHES = (12, 5)
NOTES = f"""
slowdown: an iteration with slow links over a healthy one of the same system; published: where the authors ran that
two published runs of 30B, ADAPTRA, link 0, 30 ms, are 17 % apart
all 1,200 iterations: the nine events of table 3; {RESTART_S:g} s more where 1F1B and ZB restart; healthy ones as usual
"""
COLUMNS: Columns = [
    ("model", ""),
    ("slow links", ""),
    ("delay", "ms"),
    ("system", ""),
    ("healthy", "ms"),
    ("slow links", "ms"),
    ("slowdown", ""),
    ("published", ""),
    ("off", ""),
]


def run(quick: bool) -> list[Record]:
    """One record per model, set of slow links and system; `quick`: by the calibration that all runs gave."""
    published: list[dict[str, Any]] = json.loads(RUNS.read_text())["runs"]
    records: list[Record] = []
    for model, together in MODELS.items():
        own = [document for document in published if document["model"] == model and document["slow_ms"]]
        calibration = read_calibration(None) if quick else _without(model)
        places = [(links, delay) for *_, links, delay in EVENTS] if model == "140B" else PLACES
        for links, delay_ms in places:
            for system, policy in POLICIES.items():
                case = _case(own, policy, links, delay_ms, together)
                found = _predicted(case, own, calibration)
                same = [run for run in map(read_run, own) if _is_same(run, case)]
                shown = [run.slow_ms / run.healthy_ms for run in same if run.slow_ms and run.healthy_ms]
                records.append(
                    {
                        "model": model,
                        "links": list(links),
                        "delay_ms": delay_ms,
                        "system": system,
                        "healthy_ms": found.healthy_ms,
                        "usual_ms": max(found.healthy_ms, case.usual_ms or 0.0),
                        "predicted_ms": found.slow_ms,
                        "published": statistics.median(shown) if shown else None,
                    }
                )
    return records


def _without(model: str) -> DeviceCalibration:
    """The calibration of all published runs but those of `model`."""
    return calibrate(prepare([run for run in read_runs(json.loads(RUNS.read_text())) if run.model != model]))


def _case(
    own: Sequence[dict[str, Any]], policy: str, links: Sequence[int], delay_ms: float, together: int
) -> RecordedRun:
    """What is to be predicted, of a published run of the policy or, where there is none, of zero bubble."""
    like = next((one for one in own if one["policy"] == policy), None) or _of_zero_bubble(own)
    ends = [(link, link + 1) for link in links]
    delayed = [{"src": src, "dst": dst, "ms": delay_ms} for pair in ends for src, dst in (pair, pair[::-1])]
    senders = delegates_of(delay_ms) if policy in ("zb_delegates", "adaptra") else 0
    kept = {key: value for key, value in like.items() if key not in CHANGED}
    changed = {"policy": policy, "delayed_sends": delayed, "delegates": senders, "tensor_parallel": together}
    # Of 1F1B that was not run, which has other bubbles, it is not known.
    unknown = {"healthy_ms": None} if policy == "1f1b" != like["policy"] else {}
    return read_run(kept | changed | unknown)


def _of_zero_bubble(own: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return next(one for one in own if one["policy"] == "zb")


def _predicted(case: RecordedRun, own: Sequence[dict[str, Any]], calibration: DeviceCalibration) -> Forecast:
    """As predict_run; where no healthy iteration is known, with the gap between actions of zero bubble's."""
    if case.healthy_ms is not None:
        return predict_run(case, calibration)
    parameters = predict_run(read_run(_of_zero_bubble(own)), calibration).parameters
    slow_ms, healthy_ms = (
        each.makespan(gap=parameters.gap_ms) for each in (slow_run(case, parameters), healthy_run(case))
    )
    return Forecast(slow_ms, healthy_ms, parameters, [])


def _is_same(run: RecordedRun, case: RecordedRun) -> bool:
    """Whether a published run is of that policy and those slow links."""
    ranks = range(case.slow.stages)
    alike = all(run.slow.latency(a, b) == case.slow.latency(a, b) for a in ranks for b in ranks if a != b)
    return run.policy == case.policy and alike


def row(record: Record) -> list[object]:
    """One line of the table."""
    slowdown, published = record["predicted_ms"] / record["healthy_ms"], record["published"]
    links = ", ".join(map(str, record["links"]))
    shown = ["-", ""] if published is None else [f"{published:.2f}", f"{slowdown / published - 1:+.0%}"]
    times = [f"{record[key]:.0f}" for key in ("healthy_ms", "predicted_ms")]
    return [record["model"], links, f"{record['delay_ms']:g}", record["system"], *times, f"{slowdown:.2f}", *shown]


def total_min(records: Sequence[Record], system: str) -> float:
    """Minutes of figure 21: all its iterations, of 140B."""
    own = [record for record in records if (record["model"], record["system"]) == ("140B", system)]
    lasts = [stop - first for first, stop, _, _ in EVENTS]
    healthy_s = statistics.median(record["usual_ms"] for record in own) / 1e3
    slow_s = sum(count * record["predicted_ms"] / 1e3 for count, record in zip(lasts, own, strict=True))
    restart_s = 0.0 if system.startswith("ADAPTRA") else RESTART_S
    return (slow_s + (ITERATIONS - sum(lasts)) * healthy_s + restart_s) / 60


def findings(records: Sequence[Record]) -> list[str]:
    """Where the paper's words, faster than all, hold and where they do not."""
    lines = []
    for model in MODELS:
        behind, settings, gains = [], 0, []
        for other in OTHERS:
            pairs = _beside(records, model, other)
            ratios = [one["predicted_ms"] / two["predicted_ms"] for one, two in pairs]
            gains.append(f"{min(ratios):.2f} to {max(ratios):.2f} times as fast as {other}")
            settings += len(pairs)
            for (one, _), ratio in zip(pairs, ratios, strict=True):
                if ratio < 1:
                    behind.append(f"{other} (links {', '.join(map(str, one['links']))}, {one['delay_ms']:g} ms)")
        lines.append(f"{model}: ADAPTRA is {', '.join(gains)}")
        if behind:
            lines.append(f"  contradicts 'faster than all' in {len(behind)} of {settings}: behind {'; '.join(behind)}")
    return lines


def paper_values(records: Sequence[Record]) -> list[PaperValue]:
    """Figure 21's minutes, all 1,200 iterations."""
    seen = [r for r in records if r["model"] == "140B" and r["published"]]
    off = max((abs(r["predicted_ms"] / r["healthy_ms"] / r["published"] - 1) for r in seen), default=float("nan"))
    reason = f"a restart takes {RESTART_S:g} s, chosen; published runs of 140B are at most {off:.0%} off the predicted"
    return [
        PaperValue(f"140B, {name}, minutes", total_min(records, name), paper, reason)
        for name, paper in PAPER_MIN.items()
    ]


def _beside(records: Sequence[Record], model: str, system: str) -> list[tuple[Record, Record]]:
    """(the record of `system`, that of ADAPTRA) of each setting of a model."""
    own = [record for record in records if record["model"] == model]
    adaptra = {(*one["links"], one["delay_ms"]): one for one in own if one["system"] == "ADAPTRA"}
    return [(one, adaptra[*one["links"], one["delay_ms"]]) for one in own if one["system"] == system]


def bars(records: Sequence[Record]) -> list[Bar]:
    """ADAPTRA is the fastest in every setting."""
    ratios = [
        two["predicted_ms"] / one["predicted_ms"]
        for model in MODELS
        for other in OTHERS
        for one, two in _beside(records, model, other)
    ]
    return [at_most("ADAPTRA over the others, at most", max(ratios), 1.0)]


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """Slowdowns by model and slow links; crosses are published."""
    for axis, model in zip(figure.subplots(1, len(MODELS), width_ratios=(1, 2)), MODELS, strict=True):
        own = [record for record in records if record["model"] == model]
        places = list(dict.fromkeys((*record["links"], record["delay_ms"]) for record in own))
        for i, system in enumerate(POLICIES):
            mine = [record for record in own if record["system"] == system]
            x = [places.index((*record["links"], record["delay_ms"])) + (i - 1.5) * 0.2 for record in mine]
            axis.bar(x, [r["predicted_ms"] / r["healthy_ms"] for r in mine], 0.2, label=system)
            axis.plot(x, [r["published"] or float("nan") for r in mine], "kx", markersize=4)
        names = ["+".join(map(str, links)) + f"\n{delay:g}" for *links, delay in places]
        axis.set_xticks(range(len(places)), names, fontsize=7)
        axis.set_title(model, fontsize=9)
        axis.set_xlabel("slow links, delay (ms)")
    figure.axes[0].set_ylabel("slowdown, predicted (x: published)")
    figure.axes[-1].legend(frameon=False, fontsize=8)
