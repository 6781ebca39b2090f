"""Predict how long an iteration takes on real devices once links are slow, from what it takes while they are not.

  lanterne pipeline predict case.json
  lanterne pipeline predict case.json --calibration mine.json --json -

A case is a run of `pipeline calibrate` without slow_ms; `order` and `issue` may be missing too: then the plan is made
here. The default calibration was found from runs that the authors of ADAPTRA published (H800 and A10 GPUs). Where a
case lies beyond the runs of the calibration, a line on standard error says in what, and the prediction is marked. The
gap is the time between two actions with which the simulated healthy iteration takes what healthy_ms says.
"""

import argparse
import sys
from collections.abc import Iterable
from importlib import resources

from lanterne.bench.output import report
from lanterne.bench.output.options import add_json
from lanterne.bench.pipeline.input import of_file
from lanterne.pipeline.calibrate.parameters import UNITS, DeviceCalibration
from lanterne.pipeline.calibrate.prediction import predict_run
from lanterne.pipeline.calibrate.runs import read_run

EXTRAPOLATED = ["extrapolated, see the warnings"]
PUBLISHED = resources.files("lanterne.pipeline.calibrate") / "h800.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("case", metavar="CASE.json", help="what runs, which sends are held back, a healthy iteration")
    add_calibration_argument(parser, "the published H800 and A10 runs")
    add_json(parser, "the prediction")


def add_calibration_argument(parser: argparse.ArgumentParser, default: str) -> None:
    """The option that names a file of `pipeline calibrate`."""
    parser.add_argument("--calibration", metavar="FILE", help=f"file of `pipeline calibrate` (default: {default})")


def read_calibration(path: str | None) -> DeviceCalibration:
    """The DeviceCalibration of a file, or the published one."""
    path = str(PUBLISHED) if path is None else path
    document = report.read_json(path)
    with of_file(path):
        return DeviceCalibration.from_dict(document)


def warn(beyond: Iterable[str]) -> None:
    """A line on standard error for each way in which what is predicted lies beyond the runs of its calibration."""
    for line in beyond:
        print(f"warning: {line}: extrapolated", file=sys.stderr)


def run(args: argparse.Namespace) -> int:
    """Predict, print and write; exit code 0."""
    calibration = read_calibration(args.calibration)
    document = report.read_json(args.case)
    with of_file(args.case):
        case = read_run(document)
        found = predict_run(case, calibration)
    warn(found.beyond)
    if args.json:
        values = found.parameters._asdict().items()
        document = {
            "slow_ms": found.slow_ms,
            "healthy_ms": found.healthy_ms,
            "policy": case.policy,
            "parameters": {key: {"value": value, "unit": UNITS[key]} for key, value in values},
            "extrapolated": bool(found.beyond),
            "beyond": found.beyond,
        }
        report.write_json(args.json, report.envelope(**document))
    if args.json != "-":
        columns = [("policy", ""), ("healthy", "ms"), ("slow links", "ms"), ("slowdown", ""), ("gap", "ms")]
        cells = [case.policy, f"{found.healthy_ms:.1f}", f"{found.slow_ms:.1f}"]
        cells += [f"{found.slow_ms / found.healthy_ms:.3f}", f"{found.parameters.gap_ms:.3f}"]
        report.print_table(columns, [cells], notes=EXTRAPOLATED if found.beyond else [])
    return 0
