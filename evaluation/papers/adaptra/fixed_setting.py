"""ADAPTRA figures 14 to 18 and 20 under one setting that figure 14 fixes, beside the published runs and their setting.

Simulated by the rules of devices. The paper prints no durations: those of its published 7B runs are taken for every
stage, 12 microbatches on four, 24 on eight. What figure 14 fixes: how devices queue, which plan zero bubble runs, the
gap between actions, what a message over delegates costs, and for how long it is held. A value that this misses is one
of the setting, not of the devices, where the published runs behind it are predicted within their bars: by the rules of
devices, from their own profile and healthy iteration, and the runs of other models.
"""

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import product
from typing import NamedTuple, TypeAlias

from evaluation.papers.adaptra.figure_14 import PAPER_S
from evaluation.papers.adaptra.figure_17 import PLACES
from evaluation.papers.adaptra.h800 import LIMITS, NAMES, RUNS
from evaluation.papers.experiment import Columns, Figure, PaperValue, Record
from evaluation.papers.study import slowed
from lanterne.bench.output.bars import Bar, at_most
from lanterne.bench.pipeline import calibrate as command
from lanterne.bench.pipeline.predict import read_calibration
from lanterne.pipeline.calibrate.fit import prepare
from lanterne.pipeline.calibrate.prediction import fitted_gap
from lanterne.pipeline.calibrate.runs import RecordedRun, read_runs
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.schedulers import plan
from lanterne.pipeline.simulate.check_plan import CheckedPlan, check
from lanterne.pipeline.simulate.devices import DeviceRun, Devices, issue_order, on_devices

DURATIONS_MS = 9.0, 10.0, 6.0
# Stages and microbatches of the models.
SHAPES = {"7B": (4, 12), "14B": (8, 24)}
MESSAGE_NBYTES = 10_485_760
HEALTHY_MS = 368.0
# What figure 14 chooses between.
PLANS = ("adaptra", "zb_h1", "zb_h2")
QUEUES, STREAMS, INSTANT = (0, 1, 2), (1, 2), (False, True)
COSTS_MS, HOLDS_MS = (0.0, 0.3, 0.6, 0.9, 1.2), (0.0, 1.0, 2.0, 3.0)
# System -> the policy that its published runs are recorded as.
POLICIES = {"1F1B": "1f1b", "ZB": "zb", "ADAPTRA-CPU": "zb_delegates", "ADAPTRA": "adaptra"}
# The first word of the names of published runs; in the others the machines were in another state.
KINDS = ("single", "multiple", "increasing-delay", "overhead")
# Figures that are judged, and how far off the paper they may be.
JUDGED, LIMIT = ("15", "16", "17", "18"), 0.15
SOURCES = ("fitted", "calibrated", "published")
FIGURE_INCHES = (11, 6)
NOTES = """
fitted: figure 14 fixes the setting; calibrated: by pipeline/calibrate/h800.json; published: the authors' logs
off: over the paper's; figure 16: means over 7B and 14B (stages of 30B and 60B are as large, by table 2) and both places
figure 17: means over its four sets of links; figure 18: the slow link in the pipeline, without the all-reduces
1F1B at the last link: the authors' injector also held back sends of the link before, as experiment h800 knows
"""
COLUMNS: Columns = [("figure", ""), ("what", ""), ("paper", "")]
COLUMNS = [*COLUMNS, *((head, below) for source in SOURCES for head, below in ((source, ""), (source, "off")))]


class SlowPoint(NamedTuple):
    """A model with slow links, ms each; `links` None: over NCCL whatever the system, before any link was slow."""

    model: str
    links: tuple[int, ...] | None = None
    delay_ms: float = 0.0


# Iteration times, ms, of a system at a SlowPoint; a LookupError where that is not known.
Times: TypeAlias = Callable[[str, SlowPoint], float]


class Setting(NamedTuple):
    """How devices and delegates behave, in all figures; times in ms.

    `zero_bubble` is the plan of ZB, `delegated` that of ADAPTRA-CPU.
    """

    zero_bubble: str
    delegated: str
    hardware_queues: int
    streams_per_pair: int
    instant_issue: bool
    gap_ms: float = 0.0
    message_cost_ms: float = 0.0
    hold_ms: float = 0.0
    spin: float = 1.0

    def over_nccl(self, checked: CheckedPlan, problem: Problem) -> DeviceRun:
        """A plan whose sends, where they are held back, hold back what is issued after them."""
        issue = issue_order(checked, instant=self.instant_issue)
        return on_devices(checked, problem, Devices(self.hardware_queues, self.streams_per_pair), issue)

    def with_gap(self, healthy_ms: float) -> "Setting":
        """This with the gap at which a healthy iteration of zero bubble on four stages takes so long."""
        quiet = quiet_of("7B")
        return self._replace(gap_ms=fitted_gap(self.over_nccl(planned(self.zero_bubble, quiet), quiet), healthy_ms))

    def time_ms(self, system: str, point: SlowPoint) -> float:
        """As Times says."""
        quiet, links = quiet_of(point.model), dict.fromkeys(point.links or (), point.delay_ms)
        over_nccl = point.links is None or not system.startswith("ADAPTRA")
        slow = slowed(quiet, {link: delay * (self.spin if over_nccl else 1.0) for link, delay in links.items()})
        schedulers = {"1F1B": "1f1b", "ZB": self.zero_bubble, "ADAPTRA-CPU": self.delegated, "ADAPTRA": "adaptra"}
        checked = planned(schedulers[system], slow if system == "ADAPTRA" else quiet)
        if system == "1F1B":
            run = on_devices(checked, slow, Devices(blocking_groups=True))
        elif over_nccl:
            run = self.over_nccl(checked, slow)
        else:
            run = on_devices(checked, slow, Devices(delegates=delegates_of(point.delay_ms)))
        return run.makespan(gap=self.gap_ms, message_cost=self.message_cost_ms, hold=self.hold_ms)


def quiet_of(model: str) -> Problem:
    """The Problem of a model without slow links, ms."""
    return Problem(*SHAPES[model], *DURATIONS_MS, link_latency=0)


@cache
def planned(scheduler: str, problem: Problem) -> CheckedPlan:
    """The plan of `scheduler` for what it knows."""
    return check(plan(problem, scheduler), problem, memory=False)


def delegates_of(delay_ms: float) -> int:
    """As many as the published runs had."""
    return 1 if delay_ms == 0 else 3 if delay_ms <= 30 else 6


def fitted_setting() -> Setting:
    """The Setting whose worst error of the three makespans of figure 14 is least."""

    def error(setting: Setting, systems: Iterable[str]) -> float:
        return max(abs(setting.time_ms(system, FIGURE_14) / (1e3 * PAPER_S[system]) - 1) for system in systems)

    found: list[tuple[float, Setting]] = []
    for name, queues, streams, instant in product(PLANS, QUEUES, STREAMS, INSTANT):
        setting = Setting(name, name, queues, streams, instant).with_gap(HEALTHY_MS)
        blocked = error(setting, ["ZB"])
        for cost, hold in product(COSTS_MS, HOLDS_MS) if not found or blocked < min(found)[0] else ():
            trial = setting._replace(message_cost_ms=cost, hold_ms=hold)
            found.append((max(blocked, error(trial, ["ADAPTRA-CPU", "ADAPTRA"])), trial))
    return min(found)[1]


def calibrated_setting() -> Setting:
    """The Setting of the published runs: their parameters, and the gap of their healthy 7B iterations."""
    parameters = read_calibration(None).gpus["H800"].parameters
    return Setting(
        "adaptra",
        "zb_h2",
        hardware_queues=1,
        streams_per_pair=1,
        instant_issue=False,
        message_cost_ms=parameters.cost_ms(1),
        hold_ms=parameters.hold_ms(MESSAGE_NBYTES, 1, 1),
        spin=parameters.spin,
    ).with_gap(published_ms("ZB", SlowPoint("7B")))


@cache
def published_runs() -> list[RecordedRun]:
    """The authors' runs on H800."""
    return [run for run in read_runs(json.loads(RUNS.read_text())) if run.gpu == "H800"]


def published_ms(system: str, point: SlowPoint) -> float:
    """As Times says: the median of the authors' runs of this."""
    times = [run.healthy_ms if point.links is None else run.slow_ms for run in published_at(system, point)]
    known = [time for time in times if time is not None]
    if not known:
        raise LookupError(f"no published run of {system}: {point}")
    return statistics.median(known)


def published_at(system: str, point: SlowPoint) -> list[RecordedRun]:
    """The authors' runs of this, which their names tell; all of the model and system where `links` is None."""
    where = [",".join(f"{link}_{link + 1}" for link in point.links), f"{point.delay_ms:g}"] if point.links else []
    found = []
    for run in published_runs():
        kind, *rest = run.name.split("/")
        is_like = kind in KINDS and (run.model, run.policy) == (point.model, POLICIES[system])
        if is_like and (point.links is None or rest[2:] == where):
            found.append(run)
    return found


@cache
def predicted_runs(model: str) -> dict[str, float]:
    """By the name of each published run of `model` how far off, a share, it is predicted from other models' runs."""
    every = prepare(read_runs(json.loads(RUNS.read_text())))
    return {each.prepared.run.name: each.error for each in command.left_out(every, model)}


def evidence(quantity: "Quantity") -> list[Record]:
    """The published runs with slow links behind a value, and how far off they are predicted."""
    points: list[tuple[str, SlowPoint]] = []

    def noted(system: str, point: SlowPoint) -> float:
        points.append((system, point))
        return 1.0

    quantity.of(noted)
    return [
        {"run": run.name, "policy": run.policy, "error": predicted_runs(point.model)[run.name]}
        for system, point in points
        if point.links
        for run in published_at(system, point)
    ]


FIGURE_14 = SlowPoint("7B", (2,), 30.0)
ENDS = {model: {"first": (0,), "last": (stages - 2,)} for model, (stages, _) in SHAPES.items()}


class Quantity(NamedTuple):
    """A value that the paper prints, and what it is of iteration times."""

    figure: str
    what: str
    paper: float
    of: Callable[[Times], float]


def in_figure_14(system: str) -> Quantity:
    """Its makespan, ms."""
    return Quantity("14", f"{system}, ms", 1e3 * PAPER_S[system], lambda times: times(system, FIGURE_14))


def over_healthy(figure: str, system: str, paper: float, point: SlowPoint) -> Quantity:
    """How many times as long as before."""
    return Quantity(
        figure,
        f"{system}, {point.model}, over no delay",
        paper,
        lambda times: times(system, point) / times(system, SlowPoint(point.model)),
    )


def growth(system: str, paper: float) -> Quantity:
    """Of 60 ms over 30 ms, the mean over models and places."""
    places = [(model, links) for model, ends in ENDS.items() for links in ends.values()]
    return Quantity(
        "16",
        f"{system}, 60 ms over 30 ms",
        paper,
        lambda times: statistics.mean(
            times(system, SlowPoint(*place, 60.0)) / times(system, SlowPoint(*place, 30.0)) for place in places
        ),
    )


def gain(figure: str, system: str, paper: float, points: Sequence[SlowPoint], where: str = "") -> Quantity:
    """How many times as fast as `system` ADAPTRA is: of the share of its time that it takes, the mean over points."""
    return Quantity(
        figure,
        f"ADAPTRA over {system}{where}",
        paper,
        lambda times: 1 / statistics.mean(times("ADAPTRA", point) / times(system, point) for point in points),
    )


def everywhere(end: str) -> list[SlowPoint]:
    """60 ms at the first or the last link of both models."""
    return [SlowPoint(model, ends[end], 60.0) for model, ends in ENDS.items()]


SEVERAL = [SlowPoint("14B", links, 30.0) for links in PLACES.values()]
# A share of time that is taken off, as the paper prints it, is here how many times as fast.
QUANTITIES = (
    *(in_figure_14(name) for name in PAPER_S),
    over_healthy("15", "1F1B", 2.70, SlowPoint("14B", (6,), 60.0)),
    over_healthy("15", "ZB", 4.24, SlowPoint("14B", (6,), 60.0)),
    over_healthy("15", "ADAPTRA-CPU", 2.15, SlowPoint("14B", (6,), 60.0)),
    over_healthy("15", "ADAPTRA", 1.13, SlowPoint("14B", (6,), 60.0)),
    growth("1F1B", 1.49),
    growth("ZB", 1.69),
    growth("ADAPTRA-CPU", 1.30),
    growth("ADAPTRA", 1.07),
    gain("16", "1F1B", 3.71, [SlowPoint("7B", (2,), 60.0)], ", 7B, 60 ms, last"),
    gain("16", "ZB", 3.49, [SlowPoint("14B", (6,), 60.0)], ", 14B, 60 ms, last"),
    gain("16", "ADAPTRA-CPU", 1 / (1 - 0.193), everywhere("first"), ", 60 ms, first"),
    gain("16", "ADAPTRA-CPU", 1 / (1 - 0.384), everywhere("last"), ", 60 ms, last"),
    gain("17", "1F1B", 1 / (1 - 0.516), SEVERAL),
    gain("17", "ZB", 1 / (1 - 0.575), SEVERAL),
    gain("17", "ADAPTRA-CPU", 1 / (1 - 0.231), SEVERAL),
    gain("18", "ZB", 1.96, [FIGURE_14], ", which has the link moved"),
    *(over_healthy("20", "ADAPTRA-CPU", 1.05, SlowPoint(model, ())) for model in SHAPES),
)


def run(quick: bool) -> list[Record]:
    """One record per value that the paper prints; `quick`: figures 14 and 15 alone."""
    settings = {"fitted": fitted_setting(), "calibrated": calibrated_setting()}
    sources: dict[str, Times] = {name: setting.time_ms for name, setting in settings.items()}
    sources["published"] = published_ms
    records: list[Record] = []
    for quantity in QUANTITIES:
        if not quick or quantity.figure in ("14", "15"):
            record: Record = {"figure": quantity.figure, "what": quantity.what, "paper": quantity.paper}
            for name, times in sources.items():
                try:
                    record[name] = quantity.of(times)
                except LookupError:
                    record[name] = None
            record["evidence"] = evidence(quantity) if _is_missed(record) else []
            records.append(record | {"setting": settings["fitted"]._asdict()})
    return records


def row(record: Record) -> list[object]:
    """One line of the table."""
    cells: list[object] = [record["figure"], record["what"], _told(record["paper"])]
    for source in SOURCES:
        off = _off(record, source)
        cells += ["-", ""] if off is None else [_told(record[source]), f"{off:+.0%}"]
    return cells


def _told(value: float) -> str:
    return f"{value:.0f}" if value > 100 else f"{value:.2f}"


def _off(record: Record, source: str) -> float | None:
    return None if record[source] is None else record[source] / record["paper"] - 1


def _is_missed(record: Record) -> bool:
    return record["figure"] in JUDGED and abs(_off(record, "fitted") or 0.0) > LIMIT


def _is_predicted(record: Record) -> bool:
    """Whether published runs are behind a value, and all are predicted within the worst error of their policy."""
    runs = record["evidence"]
    return bool(runs) and all(abs(each["error"]) <= LIMITS[each["policy"]][1] for each in runs)


def findings(records: Sequence[Record]) -> list[str]:
    """The setting that figure 14 fixes, and where it misses."""
    setting = records[0]["setting"]
    missed = [record for record in records if _is_missed(record)]
    told = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in setting.items()}
    lines = ["figure 14 fixes " + ", ".join(f"{key} {value}" for key, value in told.items())]
    for record in missed:
        seen, said = _off(record, "published"), _off(record, "calibrated")
        runs = "no published run" if seen is None else f"the published runs {seen:+.0%}"
        lines.append(
            f"missed: figure {record['figure']}, {record['what']}: {_off(record, 'fitted'):+.0%} off the paper; "
            f"{runs}, calibrated {said:+.0%}"
        )
        policies = dict.fromkeys(each["policy"] for each in record["evidence"])
        for policy in policies:
            off = [each["error"] for each in record["evidence"] if each["policy"] == policy]
            lines.append(f"  published runs of {NAMES[policy]} here, predicted: {', '.join(f'{x:+.1%}' for x in off)}")
    return lines


def paper_values(records: Sequence[Record]) -> list[PaperValue]:
    """Every value under the setting that figure 14 fixes; those of that figure are fitted."""
    values = []
    for record in records:
        fitted, seen = " (fitted)" if record["figure"] == "14" else "", _off(record, "published")
        reason = "no published run tells" if seen is None else f"the authors' own published runs are {seen:+.0%} off it"
        name = f"figure {record['figure']}, {record['what']}{fitted}"
        values.append(PaperValue(name, record["fitted"], record["paper"], reason))
    return values


def bars(records: Sequence[Record]) -> list[Bar]:
    """How far off the paper each figure is where its published runs do not tell why, and how those are predicted."""
    found = []
    for figure in JUDGED:
        own = [record for record in records if record["figure"] == figure]
        judged = [record for record in own if not _is_predicted(record)]
        if judged:
            off = max(abs(_off(record, "fitted") or 0.0) for record in judged)
            what = f"figure {figure}, farthest off the paper but for values whose published runs are predicted"
            found.append(at_most(what, off, LIMIT, "{:.0%}"))
        runs = [each for record in own if _is_predicted(record) for each in record["evidence"]]
        for policy in dict.fromkeys(each["policy"] for each in runs):
            off = max(abs(each["error"]) for each in runs if each["policy"] == policy)
            what = f"figure {figure}, published runs of {NAMES[policy]} where it is farther off, predicted"
            found.append(at_most(what, off, LIMITS[policy][1], "{:.1%}"))
    return found


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """How far off the paper each value is."""
    axis = figure.subplots()
    places = range(len(records))
    for i, source in enumerate(SOURCES):
        off = [_off(record, source) for record in records]
        known = [(place, 100 * value) for place, value in zip(places, off, strict=True) if value is not None]
        x, y = [place + (i - 1) * 0.2 for place, _ in known], [value for _, value in known]
        axis.plot(x, y, color=f"C{i}", marker="o", linestyle="none", label=source)
    axis.axhspan(-100 * LIMIT, 100 * LIMIT, color="grey", alpha=0.15, linewidth=0)
    axis.axhline(0, color="grey", linewidth=0.8)
    names = [f"{record['figure']}: {record['what']}" for record in records]
    axis.set_xticks(places, names, rotation=60, ha="right", fontsize=7)
    axis.set_ylabel("off the paper's value (%)")
    axis.legend(frameon=False)
