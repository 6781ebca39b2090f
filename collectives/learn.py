"""What is measured of a group for `auto`: alpha, beta and gamma, and where algorithms differ from them.

The model is fitted to the rounds of our ring. It cannot know what else an algorithm costs or saves (folds of several
inputs at once, shared caches, cores that ranks share), so those that it ranks close together are tried, at a few sizes,
and each gets the factor by which it was off. Kept for the group's hosts in LANTERNE_CACHE, a folder; "off" for none.
"""

import hashlib
import json
import logging
import os
import time
from pathlib import Path

import numpy as np

from .. import __version__
from .cost import CostModel, Piece
from .predict import Factor, predictions

log = logging.getLogger("lanterne.collectives")

# Bytes of the messages that are timed; the linear model must fit all of them within MISFIT, or it gets pieces.
MESSAGE_NBYTES = (64, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20)
MISFIT = 0.10
REPEATS = 5
# Algorithms of one size are tried in turn so often, or for TRIALS_S: short calls are disturbed more.
TRIALS, TRIALS_S = 25, 0.2
LEAST_REPEATS = 2
# Small calls are timed several at once, so that a token bucket or a cache does not stand for what a link can sustain.
AT_ONCE_NBYTES, MAX_AT_ONCE = 2 << 20, 8
# No size is timed once one took so long: slow networks are measured in a second, and large messages are linear.
ENOUGH_S = 0.25
# Nor any whose buffers would be larger than this on a rank, or, where algorithms are tried, on all ranks.
MAX_BUFFER_NBYTES, MAX_TRIED_NBYTES = 16 << 20, 256 << 20
# The collective whose algorithms are tried, and the sizes: most programs wait for this one most.
TRIED = "all_reduce"
TRIED_NBYTES = (1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
# Tried are at most MAX_TRIED, none predicted to take over TRIED_WITHIN times the cheapest.
TRIED_WITHIN, MAX_TRIED = 4.0, 6
# Of the ranks of a larger group the predictions themselves would take seconds.
MAX_TRIED_RANKS = 64
# Bytes of a cache file; a longer one is not read.
MAX_FILE_NBYTES = 16 << 10
# A measurement that something disturbed shall not stay for good.
MAX_AGE_S = 24 * 3600.0


def learn(communicator):
    """(CostModel, tuple of Factor, "measured" or "cache"), the same on all ranks. A collective call.

    Cost: some 2.5 s on one host, up to a few ENOUGH_S on a slow network; one broadcast where the cache knows it.
    """
    file = _cache_file(communicator)
    found = np.zeros(MAX_FILE_NBYTES, np.uint8)
    if communicator.rank == 0 and file is not None:
        text = _read(file)
        found[: len(text)] = np.frombuffer(text, np.uint8)
    communicator.broadcast(found, root=0, algorithm="binomial")
    known = _parse(found.tobytes().rstrip(b"\0"))
    if known is not None:
        return *known, "cache"
    model = measure_model(communicator)
    factors = measure_factors(communicator, model)
    if communicator.rank == 0 and file is not None:
        _write(file, model, factors)
    return model, factors, "measured"


def measure_model(communicator):
    """The CostModel fitted to the rounds of our own ring, the same on all ranks. A collective call.

    All ranks run at once, so that what a message costs the executor, and what sharing cores and links costs, is in it.
    """
    world_size = communicator.world_size
    sizes, rounds_s, adding_s = [], [], []
    for nbytes in MESSAGE_NBYTES:
        if sizes and nbytes * world_size > MAX_BUFFER_NBYTES:
            break
        part = np.ones(nbytes // 4, np.float32)
        whole = np.ones(part.size * world_size, np.float32)
        calls = int(min(MAX_AT_ONCE, -(-AT_ONCE_NBYTES // (nbytes * (world_size - 1)))))
        gather_s = _time(communicator, lambda p=part, w=whole: communicator.all_gather(p, w, algorithm="ring"), calls)
        scatter_s = _time(
            communicator, lambda p=part, w=whole: communicator.reduce_scatter(w, p, algorithm="ring"), calls
        )
        sizes.append(nbytes)
        rounds_s.append(gather_s / (world_size - 1))
        adding_s.append((scatter_s - gather_s) / (world_size - 1) / nbytes)
        if gather_s > ENOUGH_S:
            break
    tiny = np.ones(16, np.float32)
    spread_s = _time(
        communicator, lambda: communicator.all_gather(tiny, np.ones(16 * world_size, np.float32), algorithm="allpairs")
    )
    # Nearer, in ratio, to one message after the other than to all at once?
    serial = world_size > 2 and spread_s > rounds_s[0] * (world_size - 1) ** 0.5
    return fit(sizes, rounds_s, max(0.0, adding_s[-1]), serial)


def measure_factors(communicator, model):
    """Try the algorithms that `model` ranks close together; a tuple of Factor, equal on all ranks. A collective call.

    Those left out get the largest factor of those tried, so that what makes everything slower does not favour them.
    """
    factors = []
    if communicator.world_size > MAX_TRIED_RANKS:
        return ()
    for nbytes in TRIED_NBYTES:
        rows = predictions(TRIED, communicator.world_size, nbytes, model)
        near = [row for row in rows if row[2] <= TRIED_WITHIN * rows[0][2]][:MAX_TRIED]
        if near[-1][2] > ENOUGH_S or nbytes * communicator.world_size > MAX_TRIED_NBYTES:
            break
        source, out = np.ones((2, nbytes // 4), np.float32)
        calls = [
            lambda a=name, m=chunks: communicator.all_reduce(source, out, algorithm=a, num_chunks=m)
            for name, chunks, _ in near
        ]
        times_s = np.sort(_times(communicator, calls, TRIALS), axis=1)
        # The lower median: disturbances only add, and where calls are long there are but two.
        times_s = times_s[:, (times_s.shape[1] - 1) // 2]
        found = {row[0]: float(took_s) / row[2] for row, took_s in zip(near, times_s, strict=True)}
        factors += [Factor(TRIED, name, nbytes, found.get(name, max(found.values()))) for name, _, _ in rows]
        if times_s.max() > ENOUGH_S:
            break
    return tuple(factors)


def _time(communicator, call, calls=1):
    """Seconds of one of `calls` calls in a row on the slowest rank: the least of a few, some being disturbed."""

    def row():
        for _ in range(calls):
            call()

    return float(_times(communicator, [row], REPEATS).min()) / calls


def _times(communicator, calls, repeats):
    """Seconds of each of `calls` on the slowest rank, in turn: (len(calls), at most `repeats`), equal on all."""
    # The first round makes plans and connections.
    in_time = int(TRIALS_S / _round(communicator, calls, 0).sum())
    rounds = [_round(communicator, calls, first) for first in range(max(LEAST_REPEATS, min(repeats, in_time)))]
    return np.stack(rounds, axis=1)


def _round(communicator, calls, first):
    """Seconds of each of `calls`, called once, on the slowest rank: (len(calls),), the same on all ranks.

    The round begins with call number `first`: what goes before a call tells in its time, and is not to be the same.
    """
    samples = np.empty(len(calls))
    for index in range(first, first + len(calls)):
        communicator.barrier(algorithm="dissemination")
        started = time.perf_counter()
        calls[index % len(calls)]()
        samples[index % len(calls)] = time.perf_counter() - started
    communicator.all_reduce(samples, samples, op="max", algorithm="recursive_doubling")
    return samples


def fit(sizes, times_s, gamma_s_per_byte=0.0, serial_messages=False):
    """The CostModel of messages of `sizes` bytes that took `times_s`: a line where it misses none by over MISFIT.

    Otherwise pieces. The line is fitted by relative error, so that small messages count as much as large ones.
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
        text = file.read_bytes()
        return text if len(text) <= MAX_FILE_NBYTES else b""
    except OSError:
        return b""


def _write(file, model, factors):
    document = {"schema_version": 2, "model": model.__dict__, "factors": factors}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(document))
        temporary.replace(file)
    except OSError as error:
        log.info("cannot keep the cost model in %s: %s", file, error)


def _parse(text):
    """(CostModel, tuple of Factor) that a cache file holds; None if it is empty, broken or of another version."""
    try:
        document = json.loads(text)
        if document["schema_version"] != 2:
            return None
        factors = tuple(Factor(str(a), str(b), int(c), float(d)) for a, b, c, d in document["factors"])
        if not all(row.nbytes > 0 and 0 < row.factor < float("inf") for row in factors):
            return None
        return CostModel(**document["model"]), factors
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
