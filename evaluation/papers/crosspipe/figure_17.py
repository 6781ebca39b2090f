"""CrossPipe figure 17: whether injected latency and bandwidth are what was asked for.

Two processes. Latency: half of a ping-pong's round trip. Bandwidth: messages sent back to back, seconds for each.
Nothing is subtracted: an emulated link stands in place of the real one, whose own time (`no delay`) is a part of what
is asked for, and a message that is late already is not delayed again.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from evaluation.papers.experiment import Columns, Figure, Record
from lanterne.bench.output import report
from lanterne.bench.output.bars import Bar, at_most
from lanterne.bench.output.units import format_time
from lanterne.bench.pipeline.measure import on_ranks
from lanterne.collectives.communicator import Communicator, core_of
from lanterne.kernels.cpu.delay import wait_until
from lanterne.pipeline.planes.plane_makers import shaped
from lanterne.transport.pauses import SPIN_S
from lanterne.transport.shaped import Link, ShapedTransport

DELAYS_S = (1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3)
NBYTES, MESSAGES = 1 << 18, 8
# A sample of a shorter delay is the median of as many messages as take so long together.
SAMPLE_S = 10e-3
FIGURE_INCHES = (11, 4.5)
NOTES = f"""
messages of {NBYTES >> 10} KiB; error: of the delay observed, over that asked for; least, median and most of the samples
paper: violins, no figures printed
waited: how much too long a rank waits that has no message but only as long to wait: other programs take the cores
"""
COLUMNS: Columns = [
    ("kind", ""),
    ("no delay", ""),
    ("asked", ""),
    ("observed", "median"),
    ("error", "median"),
    ("least", ""),
    ("most", ""),
    ("waited", "median"),
]


def run(quick: bool) -> list[Record]:
    """One record per kind of delay and its length."""
    return on_ranks(observe, {"samples": 5 if quick else 15}, 2, "mpi", 60.0)


def observe(comm: Communicator, work: dict[str, Any]) -> list[Record] | None:
    """The records, on rank 0; both ranks call it."""
    links = dict.fromkeys(((0, 1), (1, 0)))
    with shaped(comm, {pair: Link() for pair in links}) as group:
        wire = group.transport
        assert isinstance(wire, ShapedTransport)
        samples: dict[tuple[str, float], list[float]] = {}
        for _ in range(-1, work["samples"]):
            for kind, one_way in KINDS.items():
                for delay_s in (0.0, *DELAYS_S):
                    for pair in links:
                        wire.set_link(*pair, link_of(kind, delay_s))
                    turns = max(1, round(SAMPLE_S / delay_s)) if delay_s else 1
                    group.barrier()
                    typical_s = statistics.median(one_way(group) for _ in range(turns))
                    samples.setdefault((kind, delay_s), []).append(typical_s)
            for delay_s in DELAYS_S:
                begin_s = time.monotonic()
                wait_until(begin_s + delay_s, SPIN_S)
                samples.setdefault(("waited", delay_s), []).append(time.monotonic() - begin_s)
    report.progress("")
    records = []
    for kind in KINDS:
        base_s = statistics.median(samples[kind, 0.0][1:])
        for delay_s in DELAYS_S:
            # The first round warms up.
            observed_s = samples[kind, delay_s][1:]
            errors = [value / delay_s - 1 for value in observed_s]
            waited = statistics.median(samples["waited", delay_s][1:]) / delay_s - 1
            record = {"kind": kind, "asked_s": delay_s, "no_delay_s": base_s, "observed_s": observed_s}
            records.append(record | {"error": errors, "waited": waited})
    return records if comm.rank == 0 else None


def link_of(kind: str, delay_s: float) -> Link:
    """The Link that delays a message by so much."""
    if not delay_s:
        return Link()
    return Link(delay_s) if kind == "latency" else Link(0.0, NBYTES / delay_s)


def half_round_trip_s(group: Communicator) -> float:
    """Seconds that a message takes one way; messages are prepared, as a pipeline's are."""
    buffer, peer = np.zeros(NBYTES, np.uint8), 1 - group.rank
    core = core_of(group)
    starts = core.prepare_send(buffer, peer), core.prepare_recv(buffer, peer)
    begin_s = time.monotonic()
    for turn in range(2):
        starts[group.rank != turn]().wait()
    return (time.monotonic() - begin_s) / 2


def per_message_s(group: Communicator) -> float:
    """Seconds of each of several messages that are sent at once."""
    buffers = [np.zeros(NBYTES, np.uint8) for _ in range(MESSAGES)]
    group.barrier()
    begin_s = time.monotonic()
    start = group.start_send if group.rank == 1 else group.start_recv
    for request in [start(buffer, 1 - group.rank) for buffer in buffers]:
        request.wait()
    return (time.monotonic() - begin_s) / MESSAGES


KINDS: dict[str, Callable[[Communicator], float]] = {"latency": half_round_trip_s, "bandwidth": per_message_s}


def row(record: Record) -> list[object]:
    """One line of the table."""
    errors = sorted(record["error"])
    cells = [f"{100 * value:+.2f} %" for value in (statistics.median(errors), errors[0], errors[-1])]
    times = (record["no_delay_s"], record["asked_s"], statistics.median(record["observed_s"]))
    return [record["kind"], *map(format_time, times), *cells, f"{100 * record['waited']:+.2f} %"]


def bars(records: Sequence[Record]) -> list[Bar]:
    """The largest median error."""
    errors = {(r["kind"], r["asked_s"]): abs(statistics.median(r["error"])) for r in records}
    kind, asked_s = worst = max(errors, key=lambda at: errors[at])
    return [at_most(f"median error, largest, of {kind} {format_time(asked_s)}", errors[worst], 0.02, "{:.2%}")]


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """Errors as violins, a panel per kind."""
    axes = figure.subplots(1, 2, sharey=True)
    for axis, kind in zip(axes, KINDS, strict=True):
        mine = [record for record in records if record["kind"] == kind]
        axis.violinplot([[100 * value for value in record["error"]] for record in mine], showmedians=True)
        axis.set_xticks(range(1, len(mine) + 1), [format_time(record["asked_s"]) for record in mine])
        axis.set_title(kind, loc="left", fontsize=10)
        axis.set_xlabel("asked for, per message")
    axes[0].set_ylabel("error (%)")
