"""Pipelines run on real processes: the cases of a command or an experiment, in turn, on one job of timed stages.

Who calls `measure` plans, prints and draws; the ranks only run. They are started here, or are those of the job that the
caller is itself a rank of.
"""

import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lanterne.bench.collective.measure import agree_start_s
from lanterne.bench.command_line import STOPPED
from lanterne.bench.output import report
from lanterne.collectives.communicator import Communicator
from lanterne.errors import InputError, LanterneError, PeerFailed, TransportError, TransportTimeout, Unavailable, one_of
from lanterne.kernels.cpu.delay import wait_until
from lanterne.pipeline.adapt.agreement import from_first
from lanterne.pipeline.device.device_stage import Device, cuda_device
from lanterne.pipeline.execute.execute import execute
from lanterne.pipeline.execute.measured import COLUMNS, gather, timeline
from lanterne.pipeline.execute.stage import Stage
from lanterne.pipeline.execute.stage_timed import NO_JITTER, Clock, Jitter, StreamClock, TimedStage, timed_stages
from lanterne.pipeline.plan.placement import Placement
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planes.data_plane import DataPlane, free_nbytes
from lanterne.pipeline.planes.delegate import near_pairs
from lanterne.pipeline.planes.plane_makers import find_plane, make_plane
from lanterne.pipeline.planes.shared_wire import SharedWires, make_file
from lanterne.pipeline.simulate.check_plan import CheckedPlan, check
from lanterne.pipeline.simulate.simulate import Timeline
from lanterne.transport.job.bootstrap import in_a_job
from lanterne.transport.own_python import own_python
from lanterne.transport.registry import TRANSPORTS
from lanterne.transport.shaped import Link, Wire

LOCAL = "local"
# Data planes whose messages leave when they are sent: what ranks take turns at, they can tell one another then.
SHARING = ("delegate", "unbounded")
# What the ranks' errors become, the first that is met first: what is not there and what cannot be before what failed.
ERRORS = (Unavailable, InputError, LanterneError)
# Of what failed, the cause before what other ranks heard or saw of it.
HEARD = (TransportError, TransportTimeout, PeerFailed)

# A JSON object: work for the ranks, or what they found.
Document: TypeAlias = dict[str, Any]
Work: TypeAlias = Callable[[Communicator, Document], Any]
# What `gather` gives; and as lists, for JSON, with None for nan.
Columns: TypeAlias = dict[str, NDArray[np.float64]]
# Beside the columns of `gather`, where there is data-parallel work: when it had ended, by rank.
LANE = "lane_s"
Rows: TypeAlias = list[list[float | None]]


class PipelineCase(NamedTuple):
    """A checked plan, the problem that it runs under, seconds in a unit of its times, and the data plane."""

    checked: CheckedPlan
    problem: Problem
    unit_s: float
    plane: str
    options: dict[str, Any] = {}  # noqa: RUF012
    ready_first: bool = False
    jitter: Jitter = NO_JITTER

    @property
    def ranks(self) -> int:
        return self.checked.plan.placement.num_ranks

    def to_dict(self) -> Document:
        """As JSON; `from_dict` is the inverse."""
        return {
            "plan": self.checked.plan.to_dict(),
            "problem": self.problem.to_dict(),
            "unit_s": self.unit_s,
            "plane": self.plane,
            "options": self.options,
            "ready_first": self.ready_first,
            "jitter": list(self.jitter),
        }

    @classmethod
    def from_dict(cls, document: Document) -> "PipelineCase":
        problem = Problem.from_dict(document["problem"])
        checked = check(Plan.from_dict(document["plan"]), problem, memory=False)
        given = {key: document[key] for key in ("unit_s", "plane", "options", "ready_first")}
        return cls(checked, problem, **given, jitter=Jitter(*document["jitter"]))


class MeasuredIterations(NamedTuple):
    """What was measured of a case: seconds from the first start to the last end, one per iteration; and that iteration
    which is nearest to their median, as a Timeline and as the columns of measured.COLUMNS.
    """

    makespan_s: list[float]
    timeline: Timeline
    columns: Columns

    @property
    def median_s(self) -> float:
        return statistics.median(self.makespan_s)


def check_case(case: PipelineCase) -> None:
    """Raise InputError if the ranks cannot run `case`."""
    find_plane(case.plane)
    if case.problem.shared_links and case.plane not in SHARING:
        raise InputError(
            f"shared_links: got some over data plane {case.plane}, expected {' or '.join(SHARING)}: a rank's messages "
            "have to leave as they are made; `lanterne pipeline simulate` prices them"
        )
    if any(nbytes != int(nbytes) for nbytes in case.problem.message_nbytes):
        raise InputError(f"message_nbytes: got {case.problem.message_nbytes}, expected whole numbers")
    # Receives are posted ahead. Of a job that is there already, perhaps on several hosts, nothing is known.
    nbytes, free = int(max(case.problem.message_nbytes)), free_nbytes()
    needed = nbytes * num_messages(case.checked.plan)
    if needed > free and not in_a_job():
        raise InputError(
            f"message_nbytes: got {nbytes}, {needed} for the messages of an iteration, expected at most the {free} "
            "bytes that are free on this host"
        )


def num_messages(plan: Plan) -> int:
    """How many messages an iteration of `plan` sends from rank to rank."""
    placement = plan.placement
    ranks = placement.stage_to_rank
    forward = (
        len(placement.microbatches_of(stage, plan.microbatches))
        for stage in range(placement.num_stages)
        if (after := placement.step(stage, 1)) is not None and ranks[stage] != ranks[after]
    )
    return 2 * sum(forward)


def emulated_links(problem: Problem, unit_s: float, wires: Sequence[Wire] = ()) -> dict[tuple[int, int], Link]:
    """{(source, destination): Link} of every pair of the problem's ranks; `wires`: one for each of its shared links."""
    shared = {pair: wire for pairs, wire in zip(problem.shared_links, wires, strict=False) for pair in pairs}
    ranks = range(problem.stages)
    nbytes = max(problem.message_nbytes)
    links = {}
    for pair in ((a, b) for a in ranks for b in ranks if a != b):
        busy = problem.occupancy(*pair, nbytes)
        rate = nbytes / (busy * unit_s) if busy else None
        links[pair] = Link(problem.latency(*pair) * unit_s, rate, shared.get(pair))
    return links


def measure(
    cases: Sequence[PipelineCase],
    iterations: int,
    warmup: int = 1,
    transport: str = "mpi",
    timeout_s: float = 60.0,
    device: str = "cpu",
) -> list[MeasuredIterations] | None:
    """Run `cases`, all of as many ranks, `iterations` rounds, each round all of them in turn.

    Args:
        device: "cpu", or "cuda": stages then are delays on streams, and times those of the device.

    Returns:
        A list of Outcomes; None on the ranks of a job but its first.

    Raises:
        InputError: a case that cannot run.
        LanterneError: a rank failed.
    """
    for case in cases:
        check_case(case)
        for name in ("data_parallel", "shared_links"):
            if getattr(case.problem, name) and device == "cuda":
                raise InputError(f"{name}: got some on a device, expected none there: `pipeline simulate` prices them")
    work = {"cases": [case.to_dict() for case in cases], "iterations": iterations, "warmup": warmup, "device": device}
    found = on_ranks(run_cases, work, cases[0].ranks, transport, timeout_s)
    return found and [_outcome(case, *each) for case, each in zip(cases, found, strict=True)]


def on_ranks(function: Work, work: Document, ranks: int, transport: str, timeout_s: float) -> Any:
    """What `function(comm, work)` returns on rank 0 of `ranks` ranks; None on the ranks of a job but its first.

    Args:
        function: one of a module, which is found there by its name.
        work: a JSON document; what rank 0 returns is one too.

    Raises:
        LanterneError: a rank failed.
    """
    if transport != LOCAL and transport not in TRANSPORTS:
        raise InputError(f"--transport: {one_of(transport, (LOCAL, *TRANSPORTS))}")
    work = work | {"transport": transport, "timeout_s": timeout_s, "ranks": ranks}
    if transport == LOCAL:
        from lanterne.collectives.jobs import spawn

        return spawn(ranks, function, work, timeout_s=timeout_s)[0]
    if in_a_job():
        return run_rank(function, work)
    return _launched(function, work, ranks)


def _launched(function: Work, work: Document, ranks: int) -> Any:
    from lanterne.transport.job.launch import launch

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "work").write_text(json.dumps(work))
        code = f"from {function.__module__} import {function.__name__} as function; from {__name__} import rank_main; "
        code += "import sys; sys.exit(rank_main(function, sys.argv[1]))"
        launcher = "mpi" if work["transport"] == "mpi" else "direct"
        exit_code = launch([*own_python(), "-c", code, folder], ranks, launcher=launcher)
        errors = sorted(Path(folder).glob("error-*"))
        if errors:
            kind = int(errors[0].name.split("-")[1])
            raise ERRORS[kind](errors[0].read_text())
        if exit_code in STOPPED:
            sys.exit(exit_code)  # who told us knows why
        if exit_code or not Path(folder, "found").exists():
            raise LanterneError(f"pipeline: the ranks ended with exit code {exit_code}, expected 0")
        return json.loads(Path(folder, "found").read_text())


def rank_main(function: Work, folder: str) -> int:
    """One rank of a job that `on_ranks` started; its exit code."""
    work = json.loads(Path(folder, "work").read_text())
    try:
        found = run_rank(function, work)
    except LanterneError as error:
        kind = next(i for i, known in enumerate(ERRORS) if isinstance(error, known))
        place = HEARD.index(type(error)) + 1 if type(error) in HEARD else 0
        Path(folder, f"error-{kind}-{place}-{id(error)}").write_text(str(error))
        return 1
    if found is not None:
        Path(folder, "found").write_text(json.dumps(found))
    return 0


def run_rank(function: Work, work: Document) -> Any:
    """The work on this rank of a job; what was found on rank 0, None on the others.

    Raises:
        InputError: the job has not as many ranks as the work needs.
    """
    from lanterne.collectives.jobs import init

    with init(transport=work["transport"], timeout_s=work["timeout_s"]) as comm:
        if comm.world_size != work["ranks"]:
            raise InputError(f"pipeline: got {comm.world_size} ranks, expected {work['ranks']}, one per stage")
        return function(comm, work)


def run_cases(comm: Communicator, work: Document) -> list[tuple[list[float], Rows]] | None:
    """Of each case (makespans, rows of COLUMNS of the median iteration) on rank 0; else None."""
    # Plans that search have no two alike: those of rank 0 count.
    cases = [PipelineCase.from_dict(document) for document in from_first(comm, lambda: work["cases"])]
    for case in cases:
        if case.ranks != comm.world_size:
            raise InputError(f"pipeline: got {comm.world_size} ranks, expected {case.ranks}, one per stage")
    timed = DeviceTimed(comm) if work["device"] == "cuda" else None
    planes = Planes(comm, timed)
    samples: list[list[Columns]] = [[] for _ in cases]
    try:
        for iteration in range(-work["warmup"], work["iterations"]):
            for i, case in enumerate(cases):
                if comm.rank == 0:
                    report.progress(f"{case.checked.plan.scheduler} over {case.plane}: {max(iteration, 0) + 1}")
                plane, is_new = planes.take(case)
                if is_new:
                    run_once(comm, case, plane, timed)  # The first messages of a plane pay for its connections.
                drawn = case._replace(jitter=case.jitter._replace(seed=max(iteration, 0)))
                columns = run_once(comm, drawn, plane, timed)
                if iteration >= 0:
                    samples[i].append(columns)
    finally:
        planes.close()
    if comm.rank == 0:
        report.progress("")
        return [_median(sample) for sample in samples]
    return None


def run_once(comm: Communicator, case: PipelineCase, plane: DataPlane, timed: "DeviceTimed | None" = None) -> Columns:
    """One iteration of a case from an agreed instant, on every rank; the columns that `gather` gives.

    Args:
        timed: a DeviceTimed, for stages on this rank's device.
    """
    make_stages = partial(timed_stages, jitter=case.jitter) if timed is None else partial(timed.stages, plane)
    stages = make_stages(case.problem, case.checked.plan.placement, comm.rank, case.unit_s)
    comm.barrier()
    wait_until(agree_start_s(comm))
    ready_first_s = case.unit_s if case.ready_first else None
    measured = execute(case.checked, stages, comm, plane=plane, ready_first_s=ready_first_s)
    columns = gather(measured if timed is None else timed.device.by_its_clock(measured), case.checked, comm)
    if case.problem.data_parallel:
        clocks = [stage.clock for stage in stages.values() if isinstance(stage, TimedStage)]
        ended_s = max((clock.lane_s for clock in clocks if isinstance(clock, Clock)), default=0.0)
        wait_until(ended_s)
        every = np.empty(comm.world_size)
        comm.all_gather(np.array([ended_s]), every)
        columns[LANE] = every
    return columns


class DeviceTimed:
    """Timed stages on the device of a rank, on a stream of this thread's own.

    Attributes: `device`, a Device.

    Raises:
        Unavailable: no GPU, driver or CuPy.
    """

    def __init__(self, comm: Communicator) -> None:
        from lanterne.kernels.cuda.spin import delay

        self.device: Device = cuda_device(comm, own_stream=True)
        self._delay = delay
        # The first measures what a delay is, and loads kernels.
        delay(0.0, self.device.stream)

    def stages(
        self, plane: DataPlane, problem: Problem, placement: Placement, rank: int, unit_s: float
    ) -> dict[int, Stage]:
        """stage -> what the executor is to be given, over `plane`; the other arguments as timed_stages has them."""
        clock = StreamClock(self.device.stream, self._delay)
        made = timed_stages(problem, placement, rank, unit_s, clock, self.device.xp)
        return {number: self.device.run(stage, plane) for number, stage in made.items()}


class Planes:
    """The data planes of a job, made when first needed; their links are those of the case at hand.

    Args:
        timed: as `run_once` has it.
    """

    def __init__(self, comm: Communicator, timed: DeviceTimed | None = None) -> None:
        self.comm = comm
        self._timed = timed
        self._made: dict[tuple[str, str], tuple[DataPlane, dict[tuple[int, int], Link]]] = {}
        self._wires: SharedWires | None = None

    def take(self, case: PipelineCase) -> tuple[DataPlane, bool]:
        """(The plane of `case` with its links, whether it has just been made); every rank calls it."""
        key = case.plane, json.dumps(case.options, sort_keys=True)
        if case.problem.shared_links and self._wires is None:
            self._wires = _shared_wires(self.comm)
        wanted = emulated_links(case.problem, case.unit_s, self._wires.wires if self._wires else ())
        is_new = key not in self._made
        if is_new:
            plane = make_plane(case.plane, self.comm, wanted, **case.options)
            self._made[key] = plane, wanted
            if self._timed is not None:
                plane.stage_on(self._timed.device)
        plane, links = self._made[key]
        for pair, link in wanted.items():
            if links[pair] != link:
                plane.set_link(*pair, link)
        self._made[key] = plane, wanted
        return plane, is_new

    def close(self) -> None:
        for plane, _ in self._made.values():
            plane.close()
        if self._wires is not None:
            self._wires.close()


def _shared_wires(comm: Communicator) -> SharedWires:
    """Links that the ranks of `comm`, all of one host, share; all of them call it.

    Raises:
        InputError: they are of several hosts.
    """
    if len(near_pairs(comm)) < comm.world_size * (comm.world_size - 1) // 2:
        raise InputError("shared_links: got ranks on several hosts, expected one: they take turns in its memory")
    # As many as there can be: one for each pair.
    count = comm.world_size**2
    with tempfile.TemporaryDirectory(prefix="lanterne-links-") as folder:
        path = from_first(comm, lambda: str(make_file(folder, count)))
        wires = SharedWires(path, count)
        comm.barrier()
    return wires


def _median(sample: Sequence[Columns]) -> tuple[list[float], Rows]:
    """The makespans of a case's iterations, and the columns, as rows, of the one nearest to their median."""
    ends = [max((columns["end_s"].max(), *columns.get(LANE, ()))) for columns in sample]
    makespans = [float(end - columns["start_s"].min()) for end, columns in zip(ends, sample, strict=True)]
    middle = statistics.median_low(makespans)
    columns = sample[makespans.index(middle)]
    rows = [[None if np.isnan(value) else value for value in columns[name].tolist()] for name in COLUMNS]
    return makespans, rows


def _outcome(case: PipelineCase, makespans: list[float], rows: Rows) -> MeasuredIterations:
    columns = {name: np.array(row, float) for name, row in zip(COLUMNS, rows, strict=True)}
    return MeasuredIterations(makespans, timeline(columns, case.checked, case.problem, case.unit_s), columns)
