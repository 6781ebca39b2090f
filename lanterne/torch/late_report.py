"""Who was late in each step of a training loop, by how much, and what the others' early start saved.

What is known of arrivals comes from the board of each group (Arrivals): who came last to each all_reduce, and how long
after the last but one. Beside it each rank notes when its own calls began and ended, and what the cost model says that
they take by the ordinary algorithm once all are there (step_log.py).
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
    """What `report` returns: `steps`, oldest first, of this rank; `str` of it is a table."""

    rank: int
    steps: tuple[LateStep, ...]

    def to_json(self) -> dict[str, Any]:
        """A document; times in seconds."""
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
    """Who was late in the last steps, by how much, what the early start saved: as this rank knows it.

    Args:
        group: a process group of lanterne; None: the default one, or that of `comm_hook`.
        last: so many steps; None: all that are kept (10,000).
        file: written as JSON, too.

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
