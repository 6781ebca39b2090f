"""CrossPipe figure 15: bubble strides, where a static schedule meets the link between two datacenters again and again.

16 stages, 8 in each datacenter, 32 microbatches, F = B = W, a latency of 1.5 F on the middle link. The paper draws the
static schedules; below them are three that were planned for the link, in the same memory of 16 activations.
"""

from collections.abc import Sequence

from evaluation.papers.experiment import Columns, Figure, Record
from lanterne.bench.output import report
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.schedulers import plan
from lanterne.pipeline.simulate.analysis import bubble_rate
from lanterne.pipeline.simulate.check_plan import check
from lanterne.pipeline.simulate.simulate import simulate

NAMES = ("1f1b", "interleaved_1f1b", "zb_h1", "zb_v", "adaptra", "crosspipe", "crosspipe_wave")
LATENCY = 1.5
FIGURE_INCHES = (14, 19)
NOTES = """
lost: what the link adds to the makespan, in units of its latency; a plan that met it once there and back would lose 2
paper, no figures printed: the delay of 1f1b, interleaved_1f1b, zb_h1 and zb_v accumulates throughout the schedule
"""
COLUMNS: Columns = [
    ("schedule", ""),
    ("no delay", "F"),
    ("delay", "F"),
    ("lost", "latencies"),
    ("bubble rate", "%"),
    ("memory", "activations"),
]


def problem_of(latency: float) -> Problem:
    """The problem with `latency` on the middle link."""
    return Problem(16, 32, 1, 1, 1, [latency if link == 7 else 0 for link in range(15)], max_inflight_activations=16)


def run(quick: bool) -> list[Record]:
    """One record per schedule, with the busy spans of every rank for the picture."""
    records = []
    for name in NAMES:
        report.progress(name)
        problem, free = problem_of(LATENCY), problem_of(0)
        made = plan(problem, name)
        # The bound on memory is 1F1B's; interleaved_1f1b needs more.
        checked = check(made, problem, memory=name != "interleaved_1f1b")
        timeline = simulate(checked, problem)
        base = simulate(plan(free, name), free).makespan
        kinds = [action.kind for rank in made.ranks for action in rank]
        columns = zip(made.rank_of.tolist(), kinds, timeline.start.tolist(), timeline.end.tolist(), strict=True)
        records.append(
            {
                "schedule": name,
                "makespan_without_delay": base,
                "makespan": timeline.makespan,
                "lost_latencies": (timeline.makespan - base) / LATENCY,
                "bubble_rate": bubble_rate(timeline),
                "peak_inflight": max(checked.peak_memory),
                "actions": [list(column) for column in columns],
            }
        )
    return records


def row(record: Record) -> list[object]:
    """One line of the table."""
    times = [f"{record[key]:.1f}" for key in ("makespan_without_delay", "makespan", "lost_latencies")]
    return [record["schedule"], *times, f"{100 * record['bubble_rate']:.1f}", f"{record['peak_inflight']:g}"]


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """One chart per schedule, on one time axis; idle time is white."""
    from matplotlib.patches import Patch

    from lanterne.pipeline.simulate.gantt import COLOURS, MEANING

    end = max(record["makespan"] for record in records)
    charts = figure.subplots(len(records), 1, sharex=True, squeeze=False)[:, 0]
    for axis, record in zip(charts, records, strict=True):
        for kind, colour in COLOURS.items():
            for rank in range(16):
                spans = [
                    (start, stop - start)
                    for holder, what, start, stop in record["actions"]
                    if (holder, what) == (rank, kind)
                ]
                axis.broken_barh(spans, (rank - 0.45, 0.9), facecolors=colour, linewidth=0)
        axis.axhline(7.5, color="black", linewidth=0.7, linestyle="--")
        axis.set_xlim(0, end)
        axis.set_ylim(15.5, -0.5)
        axis.set_ylabel("rank")
        lost = record["makespan"] - record["makespan_without_delay"]
        axis.set_title(
            f"{record['schedule']}: {record['makespan']:g} F, {lost:g} of it because of the link",
            loc="left",
            fontsize=10,
        )
    charts[-1].set_xlabel("time (F)")
    kinds = ("F", "B", "W", "BW")
    figure.legend(
        [Patch(color=COLOURS[kind]) for kind in kinds],
        [MEANING[kind] for kind in kinds],
        loc="outside upper right",
        ncols=4,
        frameon=False,
    )
