"""CrossPipe figure 12: many stages or much data parallelism, on the same 16 nodes in two datacenters.

p stages times 16 / p pipelines, 4 p microbatches each, so that the global batch stays; the model is the paper's M70.
More stages mean shorter ones, smaller messages (fewer pipelines share the link), more of them, less parameter memory
per device, and the same latency. Delay ratios are those at 4 stages. Activation memory is what parameters leave: per
layer and microbatch 34 s h bytes over the tensor-parallel ranks, on devices of 96 GB.
"""

from collections.abc import Sequence

from evaluation.papers.crosspipe.solved import SOLVED, over_bound, solved
from evaluation.papers.experiment import Columns, Figure, Record
from lanterne.bench.output import report
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.schedulers import plan
from lanterne.pipeline.simulate.check_plan import check
from lanterne.pipeline.simulate.simulate import simulate

LAYERS, HIDDEN, SEQUENCE, TENSOR_PARALLEL, DEVICE_NBYTES = 64, 8192, 4096, 4, 96e9
STAGES, MICROBATCHES_PER_STAGE = (4, 8, 16), 4
# (latency / F, time per message / F, parameter memory), at 4 stages; the paper's panels a to d.
SETTINGS = ((1, 0.25, 0.25), (0.125, 2, 0.25), (1, 0.25, 0.5), (0.125, 2, 0.5))
STATIC = ("1f1b", "zb_h1", "zb_v")
PLANNED = ("adaptra", "crosspipe", "crosspipe_wave")
SOLVER_S = (20.0, 2.0)
FIGURE_INCHES = (13, 3.8)
NOTES = """
time: of one iteration, in forwards of a stage at 4 stages; best: of the planned schedules; work: of one device
UD, Wave: the solver's, of whole actions, with one stage on each rank and two; over bound: of the least proved
paper, no figures printed: planned schedules take about as long at 4, 8 and 16 stages in all four settings
"""
COLUMNS: Columns = [
    ("latency", "F"),
    ("message", "F"),
    ("parameters", "%"),
    ("stages", ""),
    ("memory", "activations"),
    ("work", "F"),
    *((name, "F") for name in (*STATIC, *PLANNED, *SOLVED)),
    *((name, "over bound") for name in SOLVED),
    ("best", "F"),
]


def problem_of(latency: float, message: float, parameters: float, stages: int) -> Problem:
    """The problem on `stages` stages; times in forwards of a stage at 4 stages."""
    share = STAGES[0] / stages
    activation = LAYERS / stages * 34 * SEQUENCE * HIDDEN / TENSOR_PARALLEL
    memory = int(DEVICE_NBYTES * (1 - parameters * share) / activation)
    middle = stages // 2 - 1
    links = range(stages - 1)
    return Problem(
        stages,
        MICROBATCHES_PER_STAGE * stages,
        share,
        share,
        share,
        link_latency=[latency if link == middle else 0 for link in links],
        link_bandwidth=[1 if link == middle else None for link in links],
        message_nbytes=message * share,
        max_inflight_activations=memory,
    )


def run(quick: bool, limit_s: float) -> list[Record]:
    """One record per setting and number of stages."""
    records = []
    for latency, message, parameters in SETTINGS[:2] if quick else SETTINGS:
        for stages in STAGES:
            report.progress(f"{stages} stages, latency {latency:g} F, message {message:g} F")
            problem = problem_of(latency, message, parameters, stages)
            plans = {name: plan(problem, name) for name in (*STATIC, *PLANNED)}
            times = {name: simulate(check(made, problem), problem).makespan for name, made in plans.items()}
            solutions = solved(problem, limit_s)
            times |= {name: solution.makespan for name, solution in solutions.items()}
            records.append(
                {
                    "latency": latency,
                    "message": message,
                    "parameters": parameters,
                    "stages": stages,
                    "max_inflight_activations": problem.limits.capacity[0],
                    "work": problem.microbatches * 3 * problem.forward[0],
                    "makespan": times,
                    "bound": {name: solution.lower_bound for name, solution in solutions.items()},
                    "best": min(times[name] for name in (*PLANNED, *SOLVED)),
                }
            )
    return records


def row(record: Record) -> list[object]:
    """One line of the table."""
    times = [record["work"], *record["makespan"].values()]
    place = [f"{record['latency']:g}", f"{record['message']:g}", f"{100 * record['parameters']:g}", record["stages"]]
    cells = [f"{value:.1f}" for value in times]
    cells += [over_bound(record["makespan"][name], bound) for name, bound in record["bound"].items()]
    return [*place, f"{record['max_inflight_activations']:g}", *cells, f"{record['best']:.1f}"]


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """One panel per setting: time over the number of stages."""
    settings = list(dict.fromkeys((r["latency"], r["message"], r["parameters"]) for r in records))
    axes = figure.subplots(1, len(settings), sharey=True, squeeze=False)[0]
    for axis, setting in zip(axes, settings, strict=True):
        mine = [r for r in records if (r["latency"], r["message"], r["parameters"]) == setting]
        for name in (*STATIC, *PLANNED, *SOLVED):
            axis.plot(
                [str(r["stages"]) for r in mine],
                [r["makespan"][name] for r in mine],
                ":" if name in STATIC else "-",
                marker="o",
                label=name,
            )
        axis.plot([str(r["stages"]) for r in mine], [r["work"] for r in mine], color="0.6", linewidth=0.8, label="work")
        axis.set_title(
            f"latency {setting[0]:g} F, message {setting[1]:g} F,\nparameters {100 * setting[2]:g} %",
            loc="left",
            fontsize=9,
        )
        axis.set_xlabel("stages")
    axes[0].set_ylabel("iteration (F at 4 stages)")
    axes[0].set_ylim(0)
    axes[0].legend(frameon=False, fontsize=8, loc="lower left")
