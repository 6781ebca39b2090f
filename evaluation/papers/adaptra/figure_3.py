"""ADAPTRA figure 3: a slow link among the gradients' all-reduces, or between two stages; GPT2-7B, 2 x 4 processes.

A link that delays every packet slows a long message by each of its packets: 80 of an activation, since the paper has 10
ms for 0.125 ms a packet, and as many of the gradients as its 8.04 at 0.375 ms needs. The pipeline is that of figure 14;
the all-reduce is ours, a ring.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evaluation.papers.adaptra import setting
from evaluation.papers.adaptra.setting import GPT_7B as QUIET
from evaluation.papers.experiment import Columns, Figure, PaperValue, Record
from evaluation.papers.study import UNIT_S, System, case_of, slowed
from lanterne.bench.collective.measure import agree_start_s
from lanterne.bench.output import report
from lanterne.bench.output.bars import Bar, near_simulator_by_plane
from lanterne.bench.output.units import format_time
from lanterne.bench.pipeline.measure import PipelineCase, Planes, on_ranks
from lanterne.collectives.communicator import Communicator
from lanterne.kernels.cpu.delay import wait_until
from lanterne.pipeline.execute.execute import execute
from lanterne.pipeline.execute.stage_timed import timed_stages
from lanterne.pipeline.planes.data_plane import DataPlane
from lanterne.pipeline.planes.plane_makers import predict, shaped
from lanterne.transport.shaped import Link, ShapedTransport

PACKET_DELAYS_MS = (0.125, 0.25, 0.375)
PACKETS_OF_A_MESSAGE, PACKETS_OF_GRADIENTS = 80, 7000
REPLICAS, GRADIENT_NBYTES, SLOW_LINK, SLOW_GROUP = 2, 1 << 16, 2, 2
ZB = setting.SYSTEMS["ZB"]
# How the slow link is used: by data-parallel groups, by the pipeline, or by one that knows of it.
SYSTEMS = {"all-reduce": ZB, "pipeline": ZB}
PAPER = {("all-reduce", 0.375): 8.04, ("pipeline", 0.375): 2.24}
FIGURE_INCHES = (8, 4.5)
NOTES = f"""
gradients: {PACKETS_OF_GRADIENTS} packets, fitted to the paper's 8.04; slowdown: over no delay
{setting.NOTES.strip()}
"""
COLUMNS: Columns = [
    ("packet delay", ""),
    ("slow link in", ""),
    ("iteration", "measured"),
    ("simulated", ""),
    ("slowdown", "measured"),
    ("paper", ""),
]


def run(quick: bool) -> list[Record]:
    """One record per packet delay and use of the slow link."""
    return records_of(SYSTEMS, "all-reduce", quick)


def records_of(systems: Mapping[str, System], reducing: str, quick: bool) -> list[Record]:
    """The records; in system `reducing` the slow link is one of the gradients'."""
    delays = (0.0, *(PACKET_DELAYS_MS[-1:] if quick else PACKET_DELAYS_MS))
    cases = {}
    for delay in delays:
        for name, system in systems.items():
            slow = QUIET if name == reducing else slowed(QUIET, {SLOW_LINK: delay * PACKETS_OF_A_MESSAGE})
            reduce_s = UNIT_S * delay * PACKETS_OF_GRADIENTS if name == reducing else 0.0
            cases[delay, name] = case_of(system, QUIET, slow), reduce_s
    work = {"rounds": 3, "quiet": QUIET.to_dict()}
    work["cases"] = [[case.to_dict(), reduce_s] for case, reduce_s in cases.values()]
    found = on_ranks(observe, work, REPLICAS * QUIET.stages, "mpi", 60.0)
    measured = dict(zip(cases, map(statistics.median, zip(*found, strict=True)), strict=True))
    return [
        {
            "packet_delay_s": UNIT_S * delay,
            "system": name,
            "data_plane": case.plane,
            "measured_s": measured[delay, name],
            "predicted_s": predict(case.plane, case.checked, case.problem, **case.options).makespan * UNIT_S + reduce_s,
            "slowdown": measured[delay, name] / measured[0.0, name],
            "paper": PAPER.get((name, delay)),
        }
        for (delay, name), (case, reduce_s) in cases.items()
        if delay
    ]


def observe(comm: Communicator, work: dict[str, Any]) -> list[list[float]] | None:
    """A list per round of each case's seconds, on rank 0; every rank calls it."""
    stages = comm.world_size // REPLICAS
    pipeline, copies = comm.split(comm.rank // stages), comm.split(comm.rank % stages)
    found: list[list[float]] = []
    with shaped(copies, {pair: Link() for pair in ((0, 1), (1, 0))}) as gradients:
        planes = Planes(pipeline)
        for _ in range(work["rounds"]):
            found.append([])
            for document, reduce_s in work["cases"]:
                report.progress(f"{document['plan']['scheduler']} over {document['plane']}")
                case = PipelineCase.from_dict(document)
                if comm.rank >= stages:
                    # The slow link is one of the first replica.
                    case = case._replace(problem=type(QUIET).from_dict(work["quiet"]))
                slow = reduce_s if pipeline.rank == SLOW_GROUP else 0.0
                found[-1].append(_iteration_s(comm, pipeline, gradients, planes.take(case)[0], case, slow))
        planes.close()
    return found if comm.rank == 0 else None


def _iteration_s(
    comm: Communicator,
    pipeline: Communicator,
    gradients: Communicator,
    plane: DataPlane,
    case: PipelineCase,
    reduce_s: float,
) -> float:
    """Seconds from the agreed start until the last rank has its gradients."""
    link = Link(0.0, GRADIENT_NBYTES / reduce_s) if reduce_s else Link()
    wire = gradients.transport
    assert isinstance(wire, ShapedTransport)
    for source, peer in ((0, 1), (1, 0)):
        wire.set_link(gradients.ranks[source], gradients.ranks[peer], link)
    gradient = np.zeros(GRADIENT_NBYTES // 4, np.float32)
    stages = timed_stages(case.problem, case.checked.plan.placement, pipeline.rank, case.unit_s)
    comm.barrier()
    begin_s = agree_start_s(comm)
    wait_until(begin_s)
    execute(case.checked, stages, pipeline, plane=plane)
    gradients.all_reduce(gradient, gradient, algorithm="ring")
    end_s = np.array([time.monotonic()])
    comm.all_reduce(end_s, end_s, op="max")
    return float(end_s[0]) - begin_s


def row(record: Record) -> list[object]:
    """One line of the table."""
    return [
        format_time(record["packet_delay_s"]),
        record["system"],
        format_time(record["measured_s"]),
        format_time(record["predicted_s"]),
        f"{record['slowdown']:.2f}",
        "-" if record["paper"] is None else f"{record['paper']:g}",
    ]


def paper_values(records: Sequence[Record]) -> list[PaperValue]:
    """Slowdowns at the longest delay: one fitted, one found."""
    told = {r["system"]: r["slowdown"] for r in records if r["paper"]}
    names = {"all-reduce": "all-reduce (fitted)", "pipeline": "pipeline"}
    return [
        PaperValue(names[name], told[name], paper, setting.BLOCKS_MORE)
        for (name, _), paper in PAPER.items()
        if name in told
    ]


def bars(records: Sequence[Record]) -> list[Bar]:
    """How near the simulator is."""
    return near_simulator_by_plane(records)


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """Slowdown over the packet delay, crosses where the paper is."""
    axis = figure.subplots()
    for i, name in enumerate(dict.fromkeys(record["system"] for record in records)):
        mine = [record for record in records if record["system"] == name]
        x = [1e3 * record["packet_delay_s"] for record in mine]
        # Later lines may lie on earlier ones, and then must let them through.
        style: dict[str, Any] = {"color": f"C{i}", "marker": "os^D"[i % 4], "linestyle": ("-", "--", "-", ":")[i % 4]}
        axis.plot([0, *x], [1, *(record["slowdown"] for record in mine)], label=name, **style)
        told = [(at, record["paper"]) for at, record in zip(x, mine, strict=True) if record["paper"]]
        axis.plot([at for at, _ in told], [value for _, value in told], "x", color=f"C{i}", markersize=10)
    axis.set_xlabel("delay of a packet (ms)")
    axis.set_ylabel("slowdown, measured (cross: paper)")
    axis.legend(frameon=False)
