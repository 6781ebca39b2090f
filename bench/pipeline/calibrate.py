"""Find from recorded runs what messages cost on real devices, so that `pipeline predict` and `plan` can tell times.

  lanterne pipeline calibrate runs.json --json mine.json
  lanterne pipeline calibrate runs.json --leave-out 30B
  lanterne pipeline calibrate runs.json --leave-out each
  lanterne pipeline calibrate runs.json --leave-out links

A file of runs is a JSON object with a list of `runs`. Each has stages, microbatches, policy (1f1b, zb, zb_delegates or
adaptra), profile_ms (forward, backward_input, backward_weight per stage), message_bytes, delayed_sends (src, dst, ms),
healthy_ms and slow_ms of an iteration, and optionally gpu, model, ranks_per_host, tensor_parallel, delegates, order,
issue, doubtful. `pipeline run --record` and `pipeline train --record` write one. Printed is how far predictions are
off: of the runs that were used, or, with --leave-out, of those that were not. Where a kind of GPU ran one model only,
leaving that out predicts it from other GPUs; leaving out the runs of one set of slow links keeps the others of its own.
Doubtful runs weigh a quarter, the policies of a GPU the same.
"""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lanterne.bench.output import report
from lanterne.bench.output.options import add_json
from lanterne.bench.pipeline.input import of_file
from lanterne.errors import InputError, one_of
from lanterne.pipeline.calibrate.fit import PreparedRun, calibrate, prepare
from lanterne.pipeline.calibrate.parameters import UNITS, DeviceCalibration
from lanterne.pipeline.calibrate.prediction import predict_run
from lanterne.pipeline.calibrate.runs import RecordedRun, read_runs
from lanterne.pipeline.plan.problem import Problem

EACH, LINKS = "each", "links"


class PredictedRun(NamedTuple):
    """A run, what was predicted of it, and how far off that is, a share of what was measured."""

    prepared: PreparedRun
    predicted_ms: float
    error: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("runs", metavar="RUNS.json", help="recorded runs")
    parser.add_argument(
        "--leave-out",
        metavar="MODEL",
        help=f"predict the runs of this model from the others; {EACH}: each model in its turn; {LINKS}: in their turn "
        "those of one kind of GPU with messages held back between the same stages",
    )
    add_json(parser, "the parameters")


def run(args: argparse.Namespace) -> int:
    """Fit, compare, print and write; exit code 0."""
    document = report.read_json(args.runs)
    with of_file(args.runs):
        prepared = prepare(read_runs(document))
    if args.leave_out and args.json:
        raise InputError("--json: got it beside --leave-out, expected parameters from all runs")
    if args.leave_out:
        _print_errors(left_out(prepared, args.leave_out), f", {args.leave_out} left out")
        return 0
    calibration = calibrate(prepared)
    if args.json:
        report.write_json(args.json, {"schema_version": report.SCHEMA_VERSION, **calibration.to_dict()})
    if args.json != "-":
        _print_parameters(calibration)
        _print_errors(predictions(prepared, calibration), "")
    return 0


def predictions(prepared: Sequence[PreparedRun], calibration: DeviceCalibration) -> list[PredictedRun]:
    """What `calibration` predicts of runs."""
    found = []
    for each in prepared:
        predicted = predict_run(each.run, calibration).slow_ms
        found.append(PredictedRun(each, predicted, predicted / each.slow_ms - 1))
    return found


def left_out(prepared: Sequence[PreparedRun], group: str = EACH) -> list[PredictedRun]:
    """The runs of a model, `group`, or of each, or of each set of slow links, predicted from those of all others.

    Raises:
        InputError: no such model, or no other.
    """
    key = _gpu_and_links if group == LINKS else _model
    groups = list(dict.fromkeys(key(each.run) for each in prepared))
    if group not in (*groups, EACH, LINKS):
        raise InputError(f"--leave-out: {one_of(group, [*groups, EACH, LINKS])}")
    if len(groups) == 1:
        raise InputError(f"--leave-out: got runs of {groups[0] or 'one model'} alone, expected others too")
    found = []
    for name in [group] if group in groups else groups:
        others = [each for each in prepared if key(each.run) != name]
        found += predictions([each for each in prepared if key(each.run) == name], calibrate(others))
    return found


def _model(run: RecordedRun) -> str:
    return run.model


def _gpu_and_links(run: RecordedRun) -> str:
    """The kind of GPU, and between which stages something holds messages back, either way."""
    pairs = [f"{stage}_{stage + 1}" for stage in range(run.slow.stages - 1) if _is_slow(run.slow, stage)]
    return f"{run.gpu} {','.join(pairs)}"


def _is_slow(problem: Problem, stage: int) -> bool:
    return max(problem.latency(stage, stage + 1), problem.latency(stage + 1, stage)) > 0


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


def _print_errors(predicted: Sequence[PredictedRun], what: str) -> None:
    report.print_table(COLUMNS, [row(record) for record in errors(predicted)], title=f"error of predictions{what}")


def _print_parameters(calibration: DeviceCalibration) -> None:
    columns = [("parameter", ""), *((name, f"{found.runs} runs") for name, found in calibration.gpus.items())]
    rows: list[list[object]] = []
    for key, unit in UNITS.items():
        values = [f"{getattr(found.parameters, key):g}" for found in calibration.gpus.values()]
        rows.append([key if unit in key or unit == "1" else f"{key} ({unit})", *values])
    report.print_table(columns, rows, title="parameters")
    print()
