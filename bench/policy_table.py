"""`lanterne info --policy`: the values that decide at run time, where from, and what half and double of each do."""

import argparse
import importlib
from typing import Any, TextIO

from lanterne.bench.output import report
from lanterne.transport.steering import Steered, steered

# Those that have such values.
MODULES = (
    "bench.lab.network",
    *(f"collectives.late.{name}" for name in ("calls", "options", "turn")),
    *(f"collectives.auto.{name}" for name in ("learn", "pacing", "trials")),
    *(f"collectives.execute.{name}" for name in ("background", "communicator_base", "control", "requests")),
    *(f"failslow.locate.{name}" for name in ("activity", "calls_verdicts", "locate")),
    *(f"failslow.record.{name}" for name in ("blame", "iteration_log", "job_ledger", "job_log", "lateness", "period")),
    *("failslow.record.stream_times", "failslow.record.trap"),
    *("failslow.mitigate.suspicion", "failslow.validate.judge", "failslow.validate.validate"),
    *("pipeline.adapt.link_delay", "pipeline.train.adam"),
    *(f"transport.{name}" for name in ("door", "job.guard", "mpi.over_mpi", "pauses", "rank_group")),
    *(f"transport.nccl.{name}" for name in ("channel", "over_nccl", "watchdog", "watched_communicator")),
    *(f"transport.board.{name}" for name in ("late_policy", "sequencer")),
    *(f"transport.rails.{name}" for name in ("delegate_handle", "delegate_process", "rail", "rail_return")),
    *("transport.rails.spare", "transport.rails.spare_frames"),
    *(f"transport.store.{name}" for name in ("board_handler", "client", "heirs", "process", "server")),
    *(f"transport.store.membership.{name}" for name in ("epoch", "meetings", "returns")),
    *(f"transport.{name}" for name in ("tcp.duplex", "tcp.over_tcp", "ucx.over_ucx")),
    *("transport.waiting", "torch.meeting", "torch.monitored_barrier"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this part of `info`."""
    parser.add_argument(
        "--policy", action="store_true", help="tell the values that decide at run time, and what half and double do"
    )


def run(args: argparse.Namespace) -> int:
    """Print and write the table; the exit code."""
    absent = [module for module in MODULES if not _is_here(f"lanterne.{module}")]
    values = [value._asdict() for value in steered()]
    report.tell(args.json, report.envelope(policy=values, modules_not_here=absent), _print)
    return 0


def _is_here(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:  # of a library that this machine has not
        return False
    return True


def _print(document: dict[str, Any], file: TextIO) -> None:
    columns = [(name, "") for name in ("module", "value", "is", "unit", "origin", "half of it", "double")]
    rows = [_row(Steered(**value)) for value in document["policy"]]
    absent = document["modules_not_here"]
    notes = [f"not here: {', '.join(absent)}"] if absent else []
    report.print_table(columns, rows, notes=notes, left=range(len(columns)), file=file)


def _row(value: Steered) -> tuple[str, ...]:
    module = value.module.removeprefix("lanterne.")
    return module, value.name, f"{value.value:g}", value.unit, value.origin, value.half, value.double
