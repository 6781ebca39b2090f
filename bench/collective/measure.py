"""Time one collective on all ranks of a communicator, late ranks included, and check every element of every result."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lanterne.errors import InputError
from lanterne.kernels.cpu.delay import wait_until
from lanterne.kernels.dtypes import Dtype, find_dtype

if TYPE_CHECKING:
    from lanterne.collectives.communicator import Communicator

# What names a dtype; arrays of bfloat16 are of uint16.
DtypeName: TypeAlias = str | np.dtype[Any] | Dtype
# Told what is being measured.
Tick: TypeAlias = Callable[[str], None]
# Of one algorithm: time_s and late_s samples, and the wrong elements over all ranks and calls.
Measured: TypeAlias = tuple[list[float], list[float], int]

# Every rank has returned from the agreement on the start within this time for each rank that shares its core.
START_MARGIN_S = 3e-3
# nccl-tests: bus bandwidth over algorithm bandwidth, by collective, for n ranks.
BUS_FACTOR: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
}
REDUCING = ("all_reduce", "reduce_scatter", "reduce")
ROOT = 0


class CollectiveCase:
    """One collective at one size: the buffers of this rank, the call, and what must come out.

    Args:
        collective: a key of BUS_FACTOR.
        count: elements of the whole buffer: what all_reduce, broadcast and reduce work on, and what is scattered,
            gathered or exchanged in all (a multiple of the world size then).
        op: the reduction.

    Attributes: `source` and `out`, the buffers; `expected`, what must come out, None where that is nothing; `clock`,
    what `timed` goes by.
    """

    clock = "host"

    def __init__(self, comm: Communicator, collective: str, count: int, dtype: DtypeName, op: str) -> None:
        self.comm = comm
        self.collective = collective
        self.op = op
        self.source: NDArray[Any]
        self.expected: NDArray[Any] | None
        n, me = comm.world_size, comm.rank
        if collective in ("reduce_scatter", "all_gather", "all_to_all") and count % n:
            raise InputError(f"{collective}: got {count} elements, expected a multiple of {n} ranks")
        part = count // n
        mine = slice(me * part, (me + 1) * part)
        if collective in REDUCING:
            total = expected_reduction(count, dtype, op, n)
            self.source = pattern(count, dtype, op, me)
            self.expected = total[mine] if collective == "reduce_scatter" else total
            if collective == "reduce" and me != ROOT:
                self.expected = None
        elif collective == "broadcast":
            self.source = pattern(count, dtype, "sum", ROOT)
            self.expected = self.source
        elif collective == "all_gather":
            self.source = pattern(part, dtype, "sum", me)
            self.expected = np.concatenate([pattern(part, dtype, "sum", rank) for rank in range(n)])
        else:
            self.source = pattern(count, dtype, "sum", me)
            self.expected = np.concatenate([pattern(count, dtype, "sum", rank)[mine] for rank in range(n)])
        size = count if self.expected is None else self.expected.size
        self.out: NDArray[Any] = np.empty(size, storage(dtype))
        self.named: dict[str, Any] = {"dtype": "bfloat16"} if find_dtype(dtype).name == "bfloat16" else {}

    def reset(self) -> None:
        """Put what no right result holds into the output (a broadcast's root keeps its data)."""
        if self.collective == "broadcast" and self.comm.rank == ROOT:
            np.copyto(self.out, self.source)
        else:
            self.out.view(np.uint8).fill(0xA5)

    def call(self, algorithm: str, **options: Any) -> None:
        """The collective itself, with `options` of the communicator's method."""
        method, options = getattr(self.comm, self.collective), options | self.named
        if self.collective == "broadcast":
            method(self.out, root=ROOT, algorithm=algorithm, **options)
        elif self.collective in ("all_gather", "all_to_all"):
            method(self.source, self.out, algorithm=algorithm, **options)
        elif self.collective == "reduce":
            method(self.source, self.out, root=ROOT, op=self.op, algorithm=algorithm, **options)
        else:
            method(self.source, self.out, op=self.op, algorithm=algorithm, **options)

    def timed(self, algorithm: str, **options: Any) -> tuple[float, float]:
        """`call`; when this rank came to it, and when it was complete here, of this machine's monotonic clock."""
        called_s = time.monotonic()
        self.call(algorithm, **options)
        return called_s, time.monotonic()

    def result(self) -> NDArray[Any]:
        """The output, on the host."""
        return self.out

    def close(self) -> None:
        """Let go of what calls have left; the arrays are not."""

    def wrong(self) -> int:
        """How many elements of the output are wrong on this rank."""
        if self.expected is None:
            return 0
        if self.is_exact:
            return self.num_different()
        out = self.result()
        tolerance = np.finfo(out.dtype).eps
        return int(np.count_nonzero(~np.isclose(out, self.expected, rtol=4 * tolerance, atol=4 * tolerance)))

    @property
    def is_exact(self) -> bool:
        """Whether a right result has the very bits of `expected`: all but means of floats."""
        return not (self.op == "mean" and self.collective in REDUCING and self.source.dtype.kind == "f")

    def num_different(self) -> int:
        """How many elements of the output differ from `expected`, which there is."""
        return int(np.count_nonzero(self.result() != self.expected))


def storage(dtype: DtypeName) -> np.dtype[Any]:
    """The NumPy dtype of arrays of `dtype`: uint16 for bfloat16, which NumPy does not have."""
    name = find_dtype(dtype).name
    return np.dtype(np.uint16 if name == "bfloat16" else name)


def to_bfloat16(values: NDArray[Any]) -> NDArray[np.uint16]:
    """The bits, uint16, of float32 `values` rounded to bfloat16, to even where two are as near."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bfloat16(bits: NDArray[Any]) -> NDArray[np.float32]:
    """The values, float32, of bfloat16 `bits`, uint16."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def pattern(count: int, dtype: DtypeName, op: str, rank: int) -> NDArray[Any]:
    """Rank's input: small whole numbers whose reduction over up to 128 ranks is exact in every dtype, float16 too.

    In bfloat16 it is exact up to 256.
    """
    if find_dtype(dtype).name == "bfloat16":
        values = pattern(count, "float32", op, rank)
        return to_bfloat16(values if op == "prod" else np.fmod(values, 3))
    stored = storage(dtype)
    index = np.arange(count, dtype=np.uint32)
    if op == "prod":
        signs = np.where(index % 5 == rank % 5, 1, -1)
        return signs.astype(stored) if stored.kind != "u" else np.ones(count, stored)
    values = (index * np.uint32(7) + np.uint32(13 * rank)) % np.uint32(17)
    return values.astype(stored) if stored.kind == "u" else (values.astype(np.int8) - 8).astype(stored)


def expected_reduction(count: int, dtype: DtypeName, op: str, world_size: int) -> NDArray[Any]:
    """The reduction of every rank's pattern, in `dtype`."""
    ufuncs = {"sum": np.add, "mean": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
    combine: np.ufunc = ufuncs[op]
    is_bfloat16 = find_dtype(dtype).name == "bfloat16"
    values: Callable[[NDArray[Any]], NDArray[Any]] = from_bfloat16 if is_bfloat16 else np.asarray
    total = values(pattern(count, dtype, op, 0))
    for rank in range(1, world_size):
        combine(total, values(pattern(count, dtype, op, rank)), out=total)
    if op == "mean":
        total = (total / world_size).astype(total.dtype)
    return to_bfloat16(total) if is_bfloat16 else total


def agree_start_s(comm: Communicator) -> float:
    """An instant of CLOCK_MONOTONIC a little ahead, the same on all ranks of one host; call after a barrier."""
    start = np.array([time.monotonic() + START_MARGIN_S * -(-comm.world_size // len(os.sched_getaffinity(0)))])
    comm.broadcast(start, root=ROOT)
    return float(start[0])


def timed_call(
    case: CollectiveCase, algorithm: str, late_rank: int | None, delay_s: float, options: Mapping[str, Any]
) -> tuple[float, float | None]:
    """Call once from an agreed instant t0, the late rank at t0 + delay_s.

    Returns:
        (time_s, late_s): from t0, and from the late rank's call (None without one), to the last completion on any rank.
        On a device, instead of from t0, from when the streams of all ranks that are in time had come to the call: what
        the CPU takes to queue it does not count.
    """
    comm = case.comm
    comm.barrier()
    start_s = agree_start_s(comm)
    if late_rank is None:
        delay_s = 0.0
    wait_until(start_s + (delay_s if comm.rank == late_rank else 0.0))
    times = np.empty((comm.world_size, 2))
    comm.all_gather(np.array(case.timed(algorithm, **options)), times.reshape(-1))
    last_s = times[:, 1].max()
    if case.clock == "device":
        start_s = max(times[rank, 0] for rank in range(comm.world_size) if rank != late_rank)
    return last_s - start_s, None if late_rank is None else last_s - times[late_rank, 0]


def measure(
    case: CollectiveCase,
    algorithms: Sequence[str],
    late_rank: int | None = None,
    delay_s: float = 0.0,
    iterations: int = 5,
    warmup: int = 1,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    tick: Tick = lambda text: None,
) -> dict[str, Measured]:
    """Time `algorithms` in turn, `iterations` rounds, so that what disturbs one disturbs all.

    Their order is another one in every round, since what goes before a call tells in its time.

    Args:
        options: {algorithm: keyword arguments of its call}.
    """
    comm = case.comm
    samples: dict[str, tuple[list[float], list[float], list[int]]] = {name: ([], [], [0]) for name in algorithms}
    shuffled = random.Random(0)
    for iteration in range(-warmup, iterations):
        for algorithm in shuffled.sample(algorithms, len(algorithms)):
            tick(f"{algorithm} {max(iteration, 0) + 1}/{iterations}")
            case.reset()
            time_s, late_s = timed_call(case, algorithm, late_rank, delay_s, (options or {}).get(algorithm, {}))
            times_s, lates_s, wrong = samples[algorithm]
            wrong[0] += case.wrong()
            if iteration >= 0:
                times_s.append(time_s)
                if late_s is not None:
                    lates_s.append(late_s)
    for _, _, wrong in samples.values():
        counts = np.empty(comm.world_size, np.int64)
        comm.all_gather(np.array(wrong, np.int64), counts)
        wrong[0] = int(counts.sum())
    return {algorithm: (times_s, lates_s, wrong[0]) for algorithm, (times_s, lates_s, wrong) in samples.items()}
