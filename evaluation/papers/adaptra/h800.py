"""ADAPTRA's published runs on H800 and A10 GPUs: predicted over measured, each model from the runs of the others.

Parameters are fitted anew for each model, from all runs but its own: none is predicted by what was fitted to it.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from evaluation.papers.experiment import Columns, Figure, Record
from lanterne.bench.output.bars import Bar, at_most
from lanterne.bench.pipeline import calibrate as command
from lanterne.pipeline.calibrate.fit import prepare
from lanterne.pipeline.calibrate.runs import POLICIES, read_runs

RUNS = Path(__file__).with_name("h800_runs.json")
QUICK_EVERY = 3
FIGURE_INCHES = (11, 5)
# Mean and worst error that a policy may have on H800; and the mean of all.
LIMITS = {"1f1b": (0.035, 0.08), "zb": (0.035, 0.09), "zb_delegates": (0.05, 0.10), "adaptra": (0.06, 0.15)}
ALL_LIMIT = 0.045
NAMES = {"1f1b": "1F1B", "zb": "zero bubble", "zb_delegates": "zero bubble, delegates", "adaptra": "ADAPTRA"}
NOTES = """
healthy, slow links: ms of an iteration, as published; predicted: from the other models' runs, the profile and the
healthy iteration; saves: the time that the best policy of the same setting takes off, as measured and as predicted
doubtful: iterations far apart, or other settings than the other runs of the model; it weighs a quarter in the fit
"""
COLUMNS: Columns = [
    ("run", ""),
    ("healthy", "ms"),
    ("slow links", "ms"),
    ("predicted", "ms"),
    ("off by", ""),
    ("saves", "measured"),
    ("saves", "predicted"),
    ("doubtful", ""),
]


def run(quick: bool) -> list[Record]:
    """One record per run; `quick`: of every third."""
    runs = read_runs(json.loads(RUNS.read_text()))[:: QUICK_EVERY if quick else 1]
    records: list[Record] = []
    for each in command.left_out(prepare(runs)):
        known = each.prepared.run
        records.append(
            {
                "run": known.name,
                "model": known.model,
                "gpu": known.gpu,
                "policy": known.policy,
                "setting": known.name.replace(f"/{known.policy}/", "/").split("#", maxsplit=1)[0],
                "healthy_ms": known.healthy_ms,
                "slow_ms": each.prepared.slow_ms,
                "predicted_ms": each.predicted_ms,
                "error": each.error,
                "doubtful": known.is_doubtful,
            }
        )
    for record in records:
        same = [other for other in records if other["setting"] == record["setting"]]
        for key in ("slow_ms", "predicted_ms"):
            record[f"saved_{key}"] = 1 - min(other[key] for other in same) / record[key]
    return records


def row(record: Mapping[str, object]) -> list[object]:
    """One line of the table."""
    times = [f"{record[key]:.1f}" for key in ("healthy_ms", "slow_ms", "predicted_ms")]
    saved = [f"{record[key]:.0%}" for key in ("saved_slow_ms", "saved_predicted_ms")]
    return [record["run"], *times, f"{record['error']:+.1%}", *saved, "yes" if record["doubtful"] else ""]


def findings(records: Sequence[Record]) -> list[str]:
    """How often the policy that is predicted to be the best of a setting is."""
    settings = {record["setting"] for record in records}
    compared = right = 0
    for setting in settings:
        same = [record for record in records if record["setting"] == setting]
        if len({record["policy"] for record in same}) > 1:
            best = [min(same, key=lambda each: each[key])["policy"] for key in ("slow_ms", "predicted_ms")]
            compared, right = compared + 1, right + (best[0] == best[1])
    return [f"the policy predicted to be best is the best one measured in {right} of {compared} settings"]


def bars(records: Sequence[Record]) -> list[Bar]:
    """Mean and worst error of each policy, doubtful runs too, on H800."""
    on_h800 = [record for record in records if record["gpu"] == "H800"]
    found = []
    for policy, (mean, worst) in LIMITS.items():
        errors = [abs(record["error"]) for record in on_h800 if record["policy"] == policy]
        if errors:
            found.append(at_most(f"{NAMES[policy]}, mean error", sum(errors) / len(errors), mean, "{:.2%}"))
            found.append(at_most(f"{NAMES[policy]}, worst error", max(errors), worst, "{:.2%}"))
    every = [abs(record["error"]) for record in on_h800]
    return [*found, at_most("all, mean error", sum(every) / len(every), ALL_LIMIT, "{:.2%}")]


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """Predicted over measured, and the errors of each policy."""
    times, errors = figure.subplots(1, 2, width_ratios=(1, 1.3))
    longest = 1.1 * max(max(record["slow_ms"], record["predicted_ms"]) for record in records)
    shortest = 0.9 * min(min(record["slow_ms"], record["predicted_ms"]) for record in records)
    times.plot([shortest, longest], [shortest, longest], color="grey", linewidth=0.8)
    models = list(dict.fromkeys(r["model"] for r in records))
    for i, policy in enumerate(POLICIES):
        for doubtful in (False, True):
            own = [r for r in records if r["policy"] == policy and r["doubtful"] == doubtful]
            look = {"color": f"C{i}", "markersize": 5, "marker": "o", "linestyle": "none"}
            look |= {"markerfacecolor": "none"} if doubtful else {"label": NAMES[policy]}
            times.plot([r["slow_ms"] for r in own], [r["predicted_ms"] for r in own], **look)
            x = [models.index(r["model"]) + (i - 1.5) * 0.2 for r in own]
            errors.plot(x, [100 * r["error"] for r in own], **look)
    times.set(xscale="log", yscale="log", xlabel="measured (ms)", ylabel="predicted (ms)")
    for axis in (times.xaxis, times.yaxis):
        axis.set_major_formatter("{x:g}")
        # Powers of ten beside those that fit between them: names of all overlap.
        axis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:g}"[0] in "25" else "")
    times.legend(frameon=False, fontsize=8)
    errors.axhline(0, color="grey", linewidth=0.8)
    errors.set_xticks(range(len(models)), models)
    errors.set(xlabel="model that was left out of the fit", ylabel="predicted over measured, off by (%)")
    errors.set_title("hollow: doubtful runs", fontsize=9, loc="right")
