"""Report of late ranks: for each step of a training loop the late rank, its delay, and what an early start saved.

Arrivals are those of each group's board (Arrivals): the last rank of each all_reduce, and its delay after the last but
one. Each rank also logs when its own calls began and ended, and the cost model's time of them by the ordinary algorithm
(step_log.py).
"""

from io import StringIO
from typing import Any, NamedTuple

from lanterne.bench.output.report import print_table, write_json
from lanterne.bench.output.units import format_nbytes, format_time
from lanterne.errors import InputError
from lanterne.torch.ddp_hook import default_group
from lanterne.torch.process_group import LanterneGroup
from lanterne.torch.step_log import LateStep


class LateReport(NamedTuple):
    """Steps of this rank, oldest first; `str` of it is a table."""

    rank: int
    steps: tuple[LateStep, ...]

    def to_json(self) -> dict[str, Any]:
        """Return a document; times in seconds."""
        return {"schema_version": 1, "rank": self.rank, "steps": [step._asdict() for step in self.steps]}

    def __str__(self) -> str:
        rows = [
            (
                *(step.step, step.calls, format_nbytes(step.nbytes), step.begun_early),
                "" if step.late_rank is None else step.late_rank,
                "" if step.late_rank is None else format_time(step.late_s),
                *(format_time(step.own_s), format_time(step.ordinary_s)),
                "" if step.saved_s is None else format_time(step.saved_s),
            )
            for step in self.steps
        ]
        names = ("step", "calls", "data", "early", "late rank", "late by", "own", "ordinary", "saved")
        text = StringIO()
        print_table([(name, "") for name in names], rows, left=(), file=text)
        return text.getvalue().rstrip()


def report(group: Any = None, last: int | None = None, file: str | None = None) -> LateReport:
    """Return the late rank of each of the last steps, its delay, and what the early start saved, as far as known here.

    Once the group has had calls on a device, the report is of those.

    Args:
        group: a process group of lanterne; None: the default one, or that of `comm_hook`.
        last: number of steps; None: all that are kept (10,000).
        file: name of a file for the same as JSON.

    Raises:
        InputError: no group of lanterne, or a file that cannot be written.
    """
    found = default_group() if group is None else group
    if not isinstance(found, LanterneGroup):
        raise InputError(f"report: got {type(found).__name__}, expected a process group of lanterne")
    log, comm = found.device_steps()
    made = LateReport(comm.ranks[comm.rank], log.steps(last))
    if file is not None:
        write_json(file, made.to_json())
    return made
