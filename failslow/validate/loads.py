"""Loads that show how fast a device computes: matrix products in the dtypes of training, and a sum of half precision.

A repetition is timed twice: by the clock, and by what the thread itself used of its core. Ranks that share a core make
each other slow by the clock; only a slow core, or a throttled one, makes a product cost more time of its own.

Paper: Wu et al. (GREYHOUND), section 4.3, "computation validation"; differs: own time beside the clock's.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import NamedTuple, Self

from lanterne.errors import Unavailable
from lanterne.kernels.gemm import product

# By device and dtype, the side of the matrices and the products of a repetition. On a core it takes 0.6 ms, less than
# what a scheduler lets run, and each is so small that BLAS takes no second thread, for which the first would spin; on
# a GPU of the day, some ms, and on others the matrices are made smaller.
PRODUCTS: dict[str, dict[str, tuple[int, int]]] = {
    "cpu": {"float64": (64, 55), "float32": (64, 100)},
    "cuda": {"float64": (2048, 1), "float32": (4096, 1), "float16": (8192, 1), "bfloat16": (8192, 1)},
}
# A first look at a GPU is at matrices so many times smaller than those; further steps are by 4 at most.
FIRST_SHRINK, MOST_GROWTH = 16, 4
# The compute capability from which on a GPU multiplies float8.
FLOAT8_CAPABILITY = 89
# What stands for all where one has to do.
USUAL = "float32"
SUM_COUNT, SUM_REPEATS = 256 << 10, 14
LEAST_SAMPLES, MAX_SAMPLES = 8, 96


class Load(NamedTuple):
    """Something to compute: `name`, and `run()`, which returns when one repetition is complete."""

    name: str
    run: Callable[[], object]


class Samples(NamedTuple):
    """Repetitions of a load, seconds: by the clock, and of the thread's own core (NaN for a GPU)."""

    wall_s: tuple[float, ...]
    cpu_s: tuple[float, ...]


def loads(
    device: str = "cpu", which: Collection[str] | None = None, sides: Mapping[str, int] | None = None
) -> tuple[Load, ...]:
    """The Loads of `device` ("cpu" or "cuda"), each run once.

    Args:
        which: only those of these dtypes; None for all.
        sides: {dtype: side of its matrices}; None for PRODUCTS'.
    """
    makers: dict[str, Callable[[], Callable[[], object]]] = {
        f"{dtype} product": partial(_products, device, dtype, sides[dtype] if sides else side, count)
        for dtype, (side, count) in PRODUCTS[device].items()
    }
    if device == "cpu":
        # BLAS has no half precision on a CPU; our own reduction does.
        makers["float16 sum"] = _half_sum
    found = tuple(Load(name, make()) for name, make in makers.items() if which is None or name.split()[0] in which)
    for load in found:
        load.run()
    return found


def fitting_sides(limit_s: float, which: Collection[str] | None = None) -> dict[str, int]:
    """{dtype: side} of products of which this rank's GPU does one within `limit_s` and has room for, PRODUCTS' at most.

    A throttled GPU takes a hundred times as long as another, and one of float64 for graphics not much less.
    """
    return {
        dtype: _fitting_side(dtype, most, limit_s)
        for dtype, (most, _) in PRODUCTS["cuda"].items()
        if which is None or dtype in which
    }


def _fitting_side(dtype: str, most: int, limit_s: float) -> int:
    side = most // FIRST_SHRINK
    multiply, _ = product(side, dtype, "cuda")
    while side < most:
        # The first time libraries are loaded.
        multiply()
        start_s = time.monotonic()
        multiply()
        took_s, growth = time.monotonic() - start_s, min(MOST_GROWTH, most // side)
        while growth > 1 and took_s * growth**3 > limit_s:
            growth //= 2
        if growth == 1:
            break
        try:
            multiply, _ = product(side * growth, dtype, "cuda")
        except Unavailable:
            break
        side *= growth
    return side


def _products(device: str, dtype: str, side: int, count: int) -> Callable[[], None]:
    multiply, _ = product(side, dtype, device)

    def repetition() -> None:
        for _ in range(count):
            multiply()

    return repetition


def _half_sum() -> Callable[[], None]:
    import numpy as np

    from lanterne.kernels.reduce import reduce

    halves = [np.full(SUM_COUNT, value, np.float16) for value in (0.0, 1.0, 2.0)]

    def add() -> None:
        for _ in range(SUM_REPEATS):
            reduce("sum", *halves)

    return add


def left_out(device: str = "cpu") -> str:
    """What `device` computes and no Load does, and why, in a line; "" if there is nothing."""
    if device == "cuda":
        import cupy as cp

        if int(cp.cuda.Device().compute_capability) >= FLOAT8_CAPABILITY:
            return "float8 products are not tested: CuPy has none, and does not bind cuBLASLt, which has"
    return ""


def name_of_device(device: str = "cpu") -> str:
    """What the device is called; only devices of one name are compared."""
    if device == "cuda":
        import cupy as cp

        name: bytes = cp.cuda.runtime.getDeviceProperties(cp.cuda.Device().id)["name"]
        return name.decode()
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        import platform

        return platform.machine()


def sample(
    load: Load,
    limit_s: float,
    slowdown: float = 1.0,
    stop: Callable[[], bool] = lambda: False,
    *,
    own_time: bool = True,
    parts: int = 1,
) -> Samples:
    """Samples of `load`: repetitions for `limit_s`, 8 to 96 of them, or until `stop()`.

    Args:
        slowdown: for experiments: a repetition keeps the core busy this much longer, or lasts so, without `own_time`.
        own_time: whether the thread's time says anything: not for a GPU.
        parts: this is one of so many, which have 8 to 96 repetitions together.
    """
    wall_s: list[float] = []
    cpu_s: list[float] = []
    deadline_s = time.monotonic() + limit_s
    least, most = -(-LEAST_SAMPLES // parts), MAX_SAMPLES // parts
    slowed_time_s = time.thread_time if own_time else time.monotonic
    while len(wall_s) < most and not stop():
        start_s, used_s, slowed_s = time.monotonic(), time.thread_time(), slowed_time_s()
        load.run()
        if slowdown > 1.0:
            until_s = slowed_s + slowdown * (slowed_time_s() - slowed_s)
            while slowed_time_s() < until_s:
                pass
        wall_s.append(time.monotonic() - start_s)
        cpu_s.append(time.thread_time() - used_s if own_time else float("nan"))
        if len(wall_s) >= least and time.monotonic() > deadline_s:
            break
    return Samples(tuple(wall_s), tuple(cpu_s))


def latest(parts: Iterable[Samples]) -> Samples:
    """The last MAX_SAMPLES repetitions of several Samples of one load, in order."""
    wall_s, cpu_s = Samples((), ())
    for part in parts:
        wall_s += part.wall_s
        cpu_s += part.cpu_s
    return Samples(wall_s[-MAX_SAMPLES:], cpu_s[-MAX_SAMPLES:])


class Background:
    """Computes a load in a thread of its own while the block runs; `samples` has its repetitions afterwards."""

    def __init__(self, load: Load, slowdown: float = 1.0, *, own_time: bool = True) -> None:
        self.samples: Samples = Samples((), ())
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(load, slowdown, own_time), name="lanterne-load")

    @property
    def thread(self) -> int:
        """The native id of its thread, once it has begun."""
        assert self._thread.native_id is not None
        return self._thread.native_id

    def _run(self, load: Load, slowdown: float, own_time: bool) -> None:
        parts: list[Samples] = []
        while not self._ended.is_set():
            parts = [latest([*parts, sample(load, 0.0, slowdown, self._ended.is_set, own_time=own_time)])]
        self.samples = latest(parts)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()
