"""A small GPT that trains in blocks, in turn recorded and not: what its call logs say, beside what was so."""

import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.papers.experiment import Record
from lanterne.bench.output import report
from lanterne.bench.pipeline.measure import on_ranks
from lanterne.collectives import communicator
from lanterne.collectives.communicator import Communicator
from lanterne.failslow.record.adapters import LANTERNE, watch_communicator
from lanterne.failslow.record.job_log import JobLog
from lanterne.failslow.record.recorder import Recorder
from lanterne.failslow.record.watch import Reader
from lanterne.pipeline.adapt.agreement import from_first
from lanterne.pipeline.adapt.injection import SlowStage
from lanterne.pipeline.execute.execute import execute
from lanterne.pipeline.model.stage_gpt import gpt
from lanterne.pipeline.model.text import Batches
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.train.rank_layout import make_layout
from lanterne.pipeline.train.trainer import Trainer, plans

# Tensor-parallel ranks, copies, stages, on a node of 4, on 2 nodes of 4, on 4 of 2: as the paper's.
SETTINGS: dict[str, tuple[int, int, int]] = {
    "1T1D4P (S)": (1, 1, 4), "1T2D2P (S)": (1, 2, 2), "1T4D1P (S)": (1, 4, 1), "2T1D2P (S)": (2, 1, 2),
    "2T2D1P (S)": (2, 2, 1), "2T2D2P (M)": (2, 2, 2), "2T4D1P (M)": (2, 4, 1),
}  # fmt: skip
QUICK = ("1T2D2P (S)", "2T1D2P (S)")
BLOCK, BLOCKS, QUICK_BLOCKS, EACH, PACE_S = 10, 12, 6, 4, 2e-3
TEXT = dict(vocabulary=64, length=16, width=32, heads=4, blocks=4, rows=1)


def records(quick: bool, *, alternates: bool) -> list[Record]:
    """One record per setting: seconds of iterations, as they were and by the call log, and of blocks with and without.

    Args:
        alternates: whether every other block of iterations runs without the recorder, to be compared. The log then has
            gaps, which look like iterations where those have one call each.
    """
    """A record per setting: seconds of iterations, as they were and by the call log, and of blocks with and without."""
    found = []
    for name, (parts, copies, places) in SETTINGS.items():
        if quick and name not in QUICK:
            continue
        report.progress(name)
        blocks = QUICK_BLOCKS if quick else BLOCKS
        work = {"parts": parts, "copies": copies, "places": places, "blocks": blocks}
        work["alternates"] = alternates
        found.append({"setting": name} | on_ranks(train, work, parts * copies * places, "mpi", 60.0))
    return found


def train(comm: Communicator, work: dict[str, Any]) -> Record | None:
    """The work on one rank; the record on rank 0."""
    copies, places, parts = work["copies"], work["places"], work["parts"]
    total = EACH * copies
    tokens = np.random.default_rng(0).integers(0, TEXT["vocabulary"], 4096)
    trainer = Trainer(
        comm, lambda tensor: gpt(**TEXT, tensor=tensor), Batches(tokens, total, TEXT["rows"], TEXT["length"]),
        plans(Problem(places, EACH, PACE_S, PACE_S, PACE_S), "1f1b", (EACH,) * copies),
        layout=make_layout(comm.world_size, places, copies, parts),
    )  # fmt: skip
    # Paced, so that ranks that share cores take the time that ranks with cores of their own would.
    paced = {number: SlowStage(stage, PACE_S) for number, stage in trainer.stages.items()}
    trainer.use(lambda checked, stages, *args, **options: execute(checked, paced, *args, **options))
    folder = Path(from_first(comm, lambda: tempfile.mkdtemp(prefix="lanterne-watched-")))
    recorder = Recorder(folder)
    iteration_s: list[float] = []
    block_s: dict[bool, list[float]] = {True: [], False: []}
    reader = Reader(JobLog(folder, comm.world_size), lambda notice: None) if comm.rank == 0 else None
    for block in range(2 * work["blocks"]):
        # In pairs, whose order changes; the time of the first pair, which warms up, does not count.
        is_watched = not work["alternates"] or (block + block // 2) % 2 == 0
        comm.barrier()
        began_s = time.monotonic()
        if is_watched:
            with recorded(recorder):
                iteration_s += iterate(trainer)
        else:
            iterate(trainer)
        if block > 1:
            block_s[is_watched].append(time.monotonic() - began_s)
    recorder.end()
    trainer.close()
    comm.barrier()
    if reader is None:
        return None
    found = reader.finish()
    assert found is not None
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    estimated_s = found["iterations"]["median_s"]
    return {
        "iteration_s": statistics.median(iteration_s),
        "estimated_s": estimated_s,
        "calls": found["iterations"]["calls"],
        "error": abs(estimated_s / statistics.median(iteration_s) - 1) if estimated_s else None,
        "overheads": [a / b - 1 for a, b in zip(block_s[True], block_s[False], strict=work["alternates"])],
        "reader_s": reader.used_s,
    }


def iterate(trainer: Trainer) -> list[float]:
    """A block; the seconds from each iteration's beginning to the next's, by this rank's clock."""
    began_s = [time.monotonic()]
    for _ in range(BLOCK):
        trainer.iteration()
        began_s.append(time.monotonic())
    return [after - before for before, after in itertools.pairwise(began_s)]


@contextmanager
def recorded(recorder: Recorder) -> Iterator[None]:
    """Record the calls of all Communicators of this process in the block."""
    kind = communicator.Communicator
    own = dict(vars(kind))  # other methods are inherited
    for name in LANTERNE:
        setattr(kind, name, watch_communicator(kind, name, recorder))
    try:
        yield
    finally:
        for name in LANTERNE:
            delattr(kind, name)
            if name in own:
                setattr(kind, name, own[name])
