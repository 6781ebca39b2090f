"""Find from recorded runs what messages cost on real devices, so that `pipeline predict` and `plan` can tell times.

  lanterne pipeline calibrate runs.json --json mine.json
  lanterne pipeline calibrate runs.json --leave-out 30B
  lanterne pipeline calibrate runs.json --leave-out each

A file of runs is a JSON object with a list of `runs`. Each has stages, microbatches, policy (1f1b, zb, zb_delegates or
adaptra), profile_ms (forward, backward_input, backward_weight per stage), message_bytes, delayed_sends (src, dst, ms),
healthy_ms and slow_ms of an iteration, and optionally gpu, model, ranks_per_host, tensor_parallel, delegates, order,
issue, doubtful. `pipeline run --record` and `pipeline train --record` write one. Printed is how far predictions are
off: of the runs that were used, or, with --leave-out, of those that were not. Doubtful runs weigh a quarter.
"""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lanterne.bench.output import report
from lanterne.bench.pipeline.input import of_file
from lanterne.errors import InputError, one_of
from lanterne.pipeline.calibrate.fit import PreparedRun, calibrate, prepare
from lanterne.pipeline.calibrate.parameters import UNITS, DeviceCalibration
from lanterne.pipeline.calibrate.prediction import predict_run
from lanterne.pipeline.calibrate.runs import read_runs

EACH = "each"


class PredictedRun(NamedTuple):
    """A run, what was predicted of it, and how far off that is, a share of what was measured."""

    prepared: PreparedRun
    predicted_ms: float
    error: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("runs", metavar="RUNS.json", help="recorded runs")
    parser.add_argument(
        "--leave-out", metavar="MODEL", help=f"predict the runs of this model from the others; {EACH}: each in its turn"
    )
    parser.add_argument("--json", metavar="FILE", help="write the parameters ('-' for standard output)")


def run(args: argparse.Namespace) -> int:
    """Fit, compare, print and write; exit code 0."""
    document = report.read_json(args.runs)
    with of_file(args.runs):
        prepared = prepare(read_runs(document))
    if args.leave_out and args.json:
        raise InputError("--json: got it beside --leave-out, expected parameters from all runs")
    calibration = calibrate([each for each in prepared if each.run.model != args.leave_out])
    if args.leave_out:
        predicted = left_out(prepared, args.leave_out)
    else:
        predicted = predictions(prepared, calibration)
    if args.json:
        report.write_json(args.json, {"schema_version": report.SCHEMA_VERSION, **calibration.to_dict()})
    if args.json != "-":
        if args.leave_out != EACH:
            _print_parameters(calibration)
        title = "error of predictions" + (f", {args.leave_out} left out" if args.leave_out else "")
        report.print_table(COLUMNS, [row(record) for record in errors(predicted)], title=title)
    return 0


def predictions(prepared: Sequence[PreparedRun], calibration: DeviceCalibration) -> list[PredictedRun]:
    """What `calibration` predicts of runs."""
    found = []
    for each in prepared:
        predicted = predict_run(each.run, calibration).slow_ms
        found.append(PredictedRun(each, predicted, predicted / each.slow_ms - 1))
    return found


def left_out(prepared: Sequence[PreparedRun], model: str = EACH) -> list[PredictedRun]:
    """The runs of `model`, or of each in its turn, predicted from those of all others.

    Raises:
        InputError: no such model, or no other.
    """
    models = list(dict.fromkeys(each.run.model for each in prepared))
    if model != EACH and model not in models:
        raise InputError(f"--leave-out: {one_of(model, [*models, EACH])}")
    found = []
    for name in models if model == EACH else [model]:
        others = [each for each in prepared if each.run.model != name]
        found += predictions([each for each in prepared if each.run.model == name], calibrate(others))
    return found


def errors(predicted: Sequence[PredictedRun]) -> list[dict[str, Any]]:
    """Per GPU and policy, and over each GPU: runs, mean and worst error, and the same without doubtful runs."""
    groups: dict[tuple[str, str], list[PredictedRun]] = {}
    for each in predicted:
        gpu = each.prepared.run.gpu
        for key in ((gpu, each.prepared.run.policy), (gpu, "all")):
            groups.setdefault(key, []).append(each)
    records = []
    for (gpu, policy), own in sorted(groups.items()):
        sound = [abs(each.error) for each in own if not each.prepared.run.is_doubtful]
        every = [abs(each.error) for each in own]
        records.append(
            {
                "gpu": gpu,
                "policy": policy,
                "runs": len(every),
                "mean_error": statistics.mean(every),
                "worst_error": max(every),
                "sound_runs": len(sound),
                "sound_mean_error": statistics.mean(sound) if sound else None,
                "sound_worst_error": max(sound, default=None),
            }
        )
    return records


COLUMNS = [("gpu", ""), ("policy", ""), ("runs", ""), ("mean", ""), ("worst", "")]
COLUMNS += [("not doubtful", "runs"), ("not doubtful", "mean"), ("not doubtful", "worst")]


def row(record: Mapping[str, Any]) -> list[object]:
    """One line of the table."""
    cells: list[object] = [record["gpu"], record["policy"], record["runs"]]
    cells += [f"{record[key]:.2%}" for key in ("mean_error", "worst_error")]
    sound = [record["sound_mean_error"], record["sound_worst_error"]]
    return [*cells, record["sound_runs"], *("-" if value is None else f"{value:.2%}" for value in sound)]


def _print_parameters(calibration: DeviceCalibration) -> None:
    columns = [("parameter", ""), *((name, f"{found.runs} runs") for name, found in calibration.gpus.items())]
    rows: list[list[object]] = []
    for key, unit in UNITS.items():
        values = [f"{getattr(found.parameters, key):g}" for found in calibration.gpus.values()]
        rows.append([key if unit in key or unit == "1" else f"{key} ({unit})", *values])
    report.print_table(columns, rows, title="parameters")
    print()
