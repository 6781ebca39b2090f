"""What `auto` knows of a group: alpha, beta and gamma measured with the executor itself, and the choices made from them.

`lanterne.init()` measures, or takes what an earlier job measured on the same hosts (LANTERNE_CACHE, a folder; "off" for none), while
all ranks are there; so no call of the user's ever waits for a measurement, and a late rank does not spoil it. Rank 0's answer is
everybody's, so all ranks choose alike; groups have that of the communicator they were split from. Threads (`lanterne.spawn`) go by
THREADS. LANTERNE_ALGORITHM overrides: "ring" for every collective that has it, or "all_reduce=ring,broadcast=chain". Every new choice
is logged, with its reason, at level INFO.
"""

import functools
import hashlib
import json
import logging
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .. import __version__
from ..errors import InputError
from .cost import CostModel, Piece, price
from .registry import algorithms_for, best_num_chunks, find_algorithm, make_schedule

log = logging.getLogger("lanterne.collectives")

# Bytes of the messages that are timed; the linear model must fit all of them within MISFIT, or it gets pieces.
MESSAGE_NBYTES = (64, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20)
MISFIT = 0.10
REPEATS = 5
# No size is timed once one took so long: slow networks are measured in a second, and large messages there are linear anyway.
ENOUGH_S = 0.25
# Nor any whose buffers would be larger than this on a rank.
MAX_BUFFER_NBYTES = 16 << 20
# Pipelined algorithms are cut no finer: every message costs the executor some 10 us of Python.
MIN_CHUNK_NBYTES = 16 << 10
# Those of a late rank's join must share ports with nothing, so that smaller ones gain less than they cost.
LEAST_LATE_CHUNK_NBYTES = 128 << 10
# The part of a start-up time that counts where the next message of a join is posted before the last has come: 16 MiB, 4
# hosts at 200 Mbit/s, late_chain: 64 to 128 chunks 1.08 of a buffer's time, the 14 to 31 of the full one 1.3 to 1.5.
OVERLAPPED = 0.1
# A schedule of more ranks is priced in seconds; from there on the first of the registry that can run stands for auto.
MAX_PRICED_RANKS = 128
# A measurement that something disturbed shall not stay for good.
MAX_AGE_S = 24 * 3600.0

# Threads of one process, roughly: what one measures there is mostly who held the interpreter.
THREADS = CostModel(30e-6, 1 / 5e9, 1 / 10e9, serial_messages=True)


class Choice(NamedTuple):
    """What `auto` stands for in one call: an algorithm, its num_chunks (None: its own), and why."""

    algorithm: str
    num_chunks: int | None
    reason: str


class Tuning:
    """The choices of one communicator.

    Args:
        communicator: the group; it measures with its own collectives.

    Attributes: `model`, a CostModel, None where there is none; `source`, "measured", "cache", "threads" or "none".
    """

    def __init__(self, communicator):
        self._communicator = communicator
        self.adopt(None, "none")

    def adopt(self, model, source):
        """Choose by `model` from now on; call it alike on all ranks."""
        self._choices = {}
        self.model, self.source = model, source

    def learn(self):
        """Choose by what is measured now, or by the cache. A collective call."""
        if self._communicator.world_size > 1:
            self.adopt(*learn(self._communicator))
            log.info("cost model (%s): %s", self.source, self.model)

    def choose(self, collective, nbytes):
        """The Choice for `collective` on buffers of `nbytes`, the larger of a rank's two; the same on all ranks.

        Sizes are rounded up to a power of two, so that there are few choices to make.

        Raises:
            InputError: LANTERNE_ALGORITHM names an algorithm that does not exist or cannot be used.
        """
        size = 1 << max(0, nbytes - 1).bit_length()
        choice = self._choices.get((collective, size))
        if choice is None:
            choice = self._choices[collective, size] = self._make(collective, size)
            log.info("%s of %d bytes: %s, %s", collective, nbytes, choice.algorithm, choice.reason)
        return choice

    def explain(self, collective, nbytes):
        """Predicted seconds of every candidate, cheapest first: [(algorithm, num_chunks, seconds)].

        Raises:
            InputError: there is no model yet.
        """
        if self.model is None:
            raise InputError("explain: got a communicator without a cost model; call tuning.learn() on all its ranks")
        world_size = self._communicator.world_size
        rows = []
        for line in _candidates(collective, world_size):
            chunks = best_num_chunks(line, world_size, nbytes, self.model, MIN_CHUNK_NBYTES)
            cost = price(priced_schedule(collective, line.name, world_size, chunks), nbytes, self.model)
            rows.append((line.name, chunks, cost.makespan_s))
        return sorted(rows, key=lambda row: row[2])

    def num_chunks(self, collective, algorithm, nbytes):
        """The chunk count for `algorithm` on buffers of `nbytes`; None: its own choice. The same on all ranks."""
        size = 1 << max(0, nbytes - 1).bit_length()
        key = collective, size, algorithm
        if key not in self._choices:
            line = find_algorithm(collective, algorithm)
            world_size = self._communicator.world_size
            known = line.late and self.model is not None and not line.refuses(world_size)
            self._choices[key] = late_num_chunks(line, world_size, size, self.model) if known else None
        return self._choices[key]

    def _make(self, collective, nbytes):
        world_size = self._communicator.world_size
        named = override(collective, world_size)
        if named is not None:
            return Choice(named, None, "named by LANTERNE_ALGORITHM")
        candidates = _candidates(collective, world_size)
        if len(candidates) == 1 or world_size == 1:
            return Choice(candidates[0].name, None, "the only one")
        if self.model is None or world_size > MAX_PRICED_RANKS:
            return Choice(candidates[0].name, None, "not measured")
        algorithm, chunks, time_s = self.explain(collective, nbytes)[0]
        return Choice(algorithm, chunks, f"predicted to take {time_s * 1e6:.1f} us ({self.source} model)")


def late_num_chunks(line, world_size, nbytes, model):
    """The chunk count of the late-rank algorithm `line`, with start-up times that mostly overlap with messages before."""
    pieces = tuple(Piece(piece.nbytes, OVERLAPPED * piece.alpha_s, piece.beta_s_per_byte) for piece in model.pieces)
    overlapped = replace(model, alpha_s=OVERLAPPED * model.alpha_s, pieces=pieces)
    return best_num_chunks(line, world_size, nbytes, overlapped, LEAST_LATE_CHUNK_NBYTES)


def override(collective, world_size):
    """The algorithm that LANTERNE_ALGORITHM names for `collective`, or None.

    Raises:
        InputError: it names one that does not exist for any collective, or cannot be used with so many ranks.
    """
    for part in filter(None, os.environ.get("LANTERNE_ALGORITHM", "").split(",")):
        target, _, name = part.strip().rpartition("=")
        if target and target != collective:
            algorithms_for(target)
            continue
        if not target and all(line.name != name for line in algorithms_for(collective)):
            continue
        refusal = find_algorithm(collective, name).refuses(world_size)
        if refusal:
            raise InputError(f"LANTERNE_ALGORITHM: got {name} for {collective}, which {refusal}")
        return name
    return None


@functools.cache
def _candidates(collective, world_size):
    """The registry lines that `auto` chooses from."""
    return tuple(line for line in algorithms_for(collective) if not line.late and not line.refuses(world_size))


@functools.lru_cache(64)
def priced_schedule(collective, algorithm, world_size, num_chunks):
    """The schedule of a registered algorithm, unchecked, cached."""
    return make_schedule(collective, algorithm, world_size, num_chunks)


# -- measuring


def learn(communicator):
    """(CostModel, "measured" or "cache"), the same on all ranks. A collective call.

    Cost: some 50 ms on one host, up to a few ENOUGH_S on a slow network; one broadcast where the cache knows it.
    """
    file = _cache_file(communicator)
    found = np.zeros(4096, np.uint8)
    if communicator.rank == 0 and file is not None:
        text = _read(file)
        found[: len(text)] = np.frombuffer(text, np.uint8)
    communicator.broadcast(found, root=0, algorithm="binomial")
    model = _parse(found.tobytes().rstrip(b"\0"))
    if model is not None:
        return model, "cache"
    model = measure_model(communicator)
    if communicator.rank == 0 and file is not None:
        _write(file, model)
    return model, "measured"


def measure_model(communicator):
    """Time the rounds of our own ring, all ranks at once, so that what a message costs the executor, and what sharing cores and
    links costs, is in the model. A collective call; the same model on all ranks.
    """
    world_size = communicator.world_size
    sizes, rounds_s, adding_s = [], [], []
    for nbytes in MESSAGE_NBYTES:
        if sizes and nbytes * world_size > MAX_BUFFER_NBYTES:
            break
        part = np.ones(nbytes // 4, np.float32)
        whole = np.ones(part.size * world_size, np.float32)
        gather_s = _time(communicator, lambda p=part, w=whole: communicator.all_gather(p, w, algorithm="ring"))
        scatter_s = _time(communicator, lambda p=part, w=whole: communicator.reduce_scatter(w, p, algorithm="ring"))
        sizes.append(nbytes)
        rounds_s.append(gather_s / (world_size - 1))
        adding_s.append((scatter_s - gather_s) / (world_size - 1) / nbytes)
        if gather_s > ENOUGH_S:
            break
    tiny = np.ones(16, np.float32)
    spread_s = _time(communicator, lambda: communicator.all_gather(tiny, np.ones(16 * world_size, np.float32), algorithm="allpairs"))
    # Nearer, in ratio, to one message after the other than to all at once?
    serial = world_size > 2 and spread_s > rounds_s[0] * (world_size - 1) ** 0.5
    return fit(sizes, rounds_s, max(0.0, adding_s[-1]), serial)


def _time(communicator, call):
    """Seconds of `call` on the slowest rank, the least of a few: what disturbs one is not the group's."""
    samples = []
    for repeat in range(-1, REPEATS):
        communicator.barrier(algorithm="dissemination")
        started = time.perf_counter()
        call()
        if repeat >= 0:
            samples.append(time.perf_counter() - started)
    slowest = np.array([min(samples)])
    communicator.all_reduce(slowest, slowest, op="max", algorithm="recursive_doubling")
    return float(slowest[0])


def fit(sizes, times_s, gamma_s_per_byte=0.0, serial_messages=False):
    """The CostModel of messages of `sizes` bytes that took `times_s`: a line if it misses none by over MISFIT, else pieces.

    The line is fitted by relative error, so that small messages count as much as large ones.
    """
    sizes, times_s = np.array(sizes, float), np.array(times_s, float)
    design = np.stack([1 / times_s, sizes / times_s], axis=1)
    (alpha, beta), *_ = np.linalg.lstsq(design, np.ones(len(sizes)), rcond=None)
    misses = np.abs(alpha + beta * sizes - times_s) / times_s
    if alpha >= 0 and beta >= 0 and misses.max() <= MISFIT:
        return CostModel(float(alpha), float(beta), gamma_s_per_byte, serial_messages=serial_messages)
    pieces = []
    for i in range(len(sizes) - 1):
        slope = max(0.0, (times_s[i + 1] - times_s[i]) / (sizes[i + 1] - sizes[i]))
        start_s = times_s[i] - slope * sizes[i]
        if start_s < 0:  # worse than proportional here: a cost per byte alone comes nearest
            slope, start_s = times_s[i] / sizes[i], 0.0
        pieces.append(Piece(float(sizes[i]), float(start_s), float(slope)))
    return CostModel(float(times_s[0]), 0.0, gamma_s_per_byte, tuple(pieces), serial_messages)


# -- the cache


def _cache_file(communicator):
    """Where the model of this group is kept, or None."""
    folder = os.environ.get("LANTERNE_CACHE", "")
    if folder == "off":
        return None
    base = Path(folder) if folder else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lanterne"
    transport = communicator.transport
    about = [__version__, transport.name, communicator.ranks, os.uname().nodename, len(os.sched_getaffinity(0))]
    about += getattr(transport, "hosts", ())
    digest = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]
    return base / f"model-{transport.name}-{communicator.world_size}-{digest}.json"


def _read(file):
    try:
        if time.time() - file.stat().st_mtime > MAX_AGE_S:
            return b""
        return file.read_bytes()[:4096]
    except OSError:
        return b""


def _write(file, model):
    document = {"schema_version": 1, **model.__dict__}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(document))
        temporary.replace(file)
    except OSError as error:
        log.info("cannot keep the cost model in %s: %s", file, error)


def _parse(text):
    """The CostModel that a cache file holds; None if it is empty, broken or of another version."""
    try:
        document = json.loads(text)
        if document.pop("schema_version") != 1:
            return None
        return CostModel(**document)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
