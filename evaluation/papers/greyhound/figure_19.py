"""GREYHOUND figure 19: seconds to put a job's ranks elsewhere (S3), peer to peer against through the disk.

Both in the same processes, in turn; what goes through the disk is saved, closed, made anew and loaded, without the
start of processes, which a real restart has to wait for as well. The paper's ranks have 10 to 76 GB each.
"""

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluation.papers.experiment import Columns, Figure, PaperValue, Record
from lanterne.bench.output.bars import Bar, at_least
from lanterne.bench.output.units import format_nbytes, format_time
from lanterne.bench.pipeline.measure import on_ranks
from lanterne.collectives.communicator import Communicator
from lanterne.pipeline.model.stage_mlp import mlp
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.train.adam import Adam
from lanterne.pipeline.train.checkpoint import load, save
from lanterne.pipeline.train.rank_layout import Layout, make_layout
from lanterne.pipeline.train.trainer import Trainer, plans

COPIES, PLACES, TOTAL, ROWS = 2, 2, 4, 2
WIDTHS, QUICK_WIDTHS, TURNS = (256, 512, 1024, 1536), (256, 512), 4
BAR, PAPER_GAIN = 3.0, 6.72
# Of the losses, beside those of a job whose ranks stay where they are.
TOLERANCE = 1e-5
COLUMNS: Columns = [("a rank's state", ""), ("peer to peer", ""), ("disk", ""), ("ratio", ""), ("losses", "")]
FIGURE_INCHES = (6, 4)
NOTES = """
paper: up to 6.72 times; bar: 3
"""


def run(quick: bool) -> list[Record]:
    """A record per size of the state."""
    return [_record(width) for width in (QUICK_WIDTHS if quick else WIDTHS)]


def _record(width: int) -> Record:
    with tempfile.TemporaryDirectory() as folder:
        work = {"width": width, "turns": TURNS, "path": str(Path(folder, "state.npz"))}
        found = on_ranks(train, work, COPIES * PLACES, "mpi", 60.0)
    return found | {"width": width, "nbytes": state_nbytes(width) // PLACES}


def train(comm: Communicator, work: dict[str, Any]) -> Record | None:
    """The times of both ways on rank 0."""
    width, path = work["width"], Path(work["path"])
    planned = plans(Problem(PLACES, TOTAL // COPIES, 1, 1, 1), "zb_h1", (TOTAL // COPIES,) * COPIES)
    home = make_layout(comm.world_size, PLACES, COPIES)
    away = Layout((home.ranks[1][:1] + home.ranks[0][1:], home.ranks[0][:1] + home.ranks[1][1:]))
    other = Layout((home.ranks[0][::-1], home.ranks[1][::-1]))
    found: Record = {"peer_to_peer_s": [], "disk_s": []}
    losses = []

    def batches(number: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        inputs = np.random.default_rng(number).standard_normal((TOTAL, ROWS, width)).astype(np.float32)
        return inputs, np.tanh(inputs)

    def make(layout: Layout) -> Trainer:
        return Trainer(comm, mlp((width,) * 5, ROWS), batches, planned, layout=layout, optimizer=Adam)

    trainer = make(home)
    losses.append(trainer.iteration().losses)
    for turn in range(2 * work["turns"]):
        layout = (other, home)[turn % 2] if turn else away
        comm.barrier()
        began_s = time.monotonic()
        if turn % 4 < 2:
            trainer.change(layout=layout)
        else:
            state = trainer.state()
            if comm.rank == 0:
                save(path, state, {})
            comm.barrier()
            trainer.close()
            trainer = make(layout)
            trainer.restore(load(path, {}))
        comm.barrier()
        found["peer_to_peer_s" if turn % 4 < 2 else "disk_s"].append(time.monotonic() - began_s)
        losses.append(trainer.iteration().losses)
    trainer.close()
    unmoved = make(home)
    expected = [unmoved.iteration().losses for _ in losses]
    unmoved.close()
    found["same"] = bool(np.allclose(losses, expected, rtol=TOLERANCE, atol=0.0))
    return found if comm.rank == 0 else None


def state_nbytes(width: int) -> int:
    """Of a copy: four layers, parameters and two moments of Adam, float32."""
    return 3 * 4 * 4 * (width * width + width)


def row(record: Record) -> list[object]:
    """One line of the table."""
    peer_s, disk_s = (statistics.median(record[f"{key}_s"]) for key in ("peer_to_peer", "disk"))
    told = "the same" if record["same"] else "NOT THE SAME"
    return [format_nbytes(record["nbytes"]), format_time(peer_s), format_time(disk_s), f"{disk_s / peer_s:.1f}", told]


def _ratios(records: Sequence[Record]) -> list[float]:
    return [statistics.median(r["disk_s"]) / statistics.median(r["peer_to_peer_s"]) for r in records]


def paper_values(records: Sequence[Record]) -> list[PaperValue]:
    """The largest ratio, which the paper prints as the most."""
    reason = "a rank's state is a thousandth of the paper's, and nothing waits for processes to start"
    return [PaperValue("peer to peer over disk, most", max(_ratios(records)), PAPER_GAIN, reason)]


def bars(records: Sequence[Record]) -> list[Bar]:
    """The least gain, and where losses are the same."""
    same = sum(record["same"] for record in records)
    return [
        at_least("through the disk over peer to peer, least", min(_ratios(records)), BAR),
        at_least("sizes whose losses are those of a job without moves", same, len(records)),
    ]


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """Bars of both ways."""
    axes = figure.subplots()
    at = range(len(records))
    for shift, key, label in ((-0.2, "peer_to_peer_s", "peer to peer"), (0.2, "disk_s", "through the disk")):
        axes.bar([x + shift for x in at], [statistics.median(record[key]) for record in records], 0.38, label=label)
    axes.set_xticks(list(at), [format_nbytes(record["nbytes"]) for record in records])
    axes.set(xlabel="state of a rank", ylabel="seconds")
    axes.legend(frameon=False)
