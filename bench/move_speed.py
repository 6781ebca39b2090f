"""`python -m lanterne.bench.move_speed`: seconds to put a training job on other ranks, peer to peer against from disk.

Both in the same processes, in turn; from disk is saved, closed, made anew and
loaded, without the start of processes, which a real restart has to wait for as well.

Paper: Wu et al. (GREYHOUND), figure 19: up to 6.72 times.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from ..pipeline.adam import Adam
from ..pipeline.checkpoint import load, save
from ..pipeline.layout import Layout, make_layout
from ..pipeline.problem import Problem
from ..pipeline.stage_mlp import mlp
from ..pipeline.train import Trainer, plans
from . import report
from .pipeline_measure import on_ranks
from .units import format_time

COPIES, PLACES, TOTAL, ROWS = 2, 2, 4, 2
BAR = 3.0


def train(comm, work):
    """The times of both ways on rank 0."""
    width, path = work["width"], Path(work["path"])
    planned = plans(Problem(PLACES, TOTAL // COPIES, 1, 1, 1), "zb_h1", (TOTAL // COPIES,) * COPIES)
    home = make_layout(comm.world_size, PLACES, COPIES)
    away = Layout((home.ranks[1][:1] + home.ranks[0][1:], home.ranks[0][:1] + home.ranks[1][1:]))
    other = Layout((home.ranks[0][::-1], home.ranks[1][::-1]))
    found = {"peer_to_peer_s": [], "disk_s": [], "same": True}

    def batches(number):
        inputs = np.random.default_rng(number).standard_normal((TOTAL, ROWS, width)).astype(np.float32)
        return inputs, np.tanh(inputs)

    def make(layout):
        return Trainer(comm, mlp((width,) * 5, ROWS), batches, planned, layout=layout, optimizer=Adam)

    trainer = make(home)
    trainer.iteration()
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
        losses = trainer.iteration().losses
        found["same"] &= bool(np.isfinite(losses).all())
    trainer.close()
    return found if comm.rank == 0 else None


def state_nbytes(width):
    """Of a copy: four layers, parameters and two moments of Adam, float32."""
    return 3 * 4 * 4 * (width * width + width)


def main(width=1024, turns=4):
    """Measure and print; exit code 1 below the bar."""
    from .move_speed import train  # The ranks find it by the name of its module, which here is __main__.

    with tempfile.TemporaryDirectory() as folder:
        work = {"width": width, "turns": turns, "path": str(Path(folder, "state.npz"))}
        found = on_ranks(train, work, COPIES * PLACES, "mpi", 60.0)
    medians_s = [statistics.median(found[key]) for key in ("peer_to_peer_s", "disk_s")]
    ratio = medians_s[1] / medians_s[0]
    nbytes = state_nbytes(width)
    columns = [("state", "MB"), ("peer to peer", ""), ("disk", ""), ("ratio", "")]
    report.print_table(columns, [[f"{nbytes / 1e6:.0f}", *map(format_time, medians_s), f"{ratio:.2f}"]])
    return 0 if ratio >= BAR and found["same"] else 1


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
