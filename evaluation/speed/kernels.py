"""Benchmark the reduction kernels against a plain copy and against the array library's own addition, in one run.

  ./run evaluate kernels                                 float32, float16 and bfloat16 at 256 MiB on the CPU
  ./run evaluate kernels --dtype int8 --bytes 64K,1M
  ./run evaluate kernels --device cuda --bytes 1GiB      on the GPU, CUDA C and Numba kernels

Every iteration calls each kernel and its peer in turn, so a noisy neighbour hits both; `ratio` is the median over
iterations. Comparisons per dtype and size, `reduce` being out += in, and `fold` k inputs, `out` the first of them, in
one pass:
  reduce / copy   bandwidth over that of a copy, by bytes read and written: three per byte of buffer against two
  fold / copy     the same: k + 1 against two
  reduce / add    time of the array library's in-place add over ours
  fold / adds     time of its k - 1 in-place adds over ours
Results are checked on every element, before and after timing. With --check a missed bar, too, is exit code 1. On the
CPU, from 256 MiB on: reduce / copy 0.9 (float32), reduce / add 10 (float16), fold / adds 1.6 (float32, k = 7). On a
GPU, from 1 GiB on: 0.9 of the copy, for reduce and fold alike.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from lanterne.bench.output import report
from lanterne.bench.output.units import format_nbytes, format_time, parse_sizes
from lanterne.errors import InputError, Unavailable
from lanterne.kernels.dtypes import Dtype, check_op, find_dtype

CPU_BARS = {("reduce / copy", "float32"): 0.9, ("fold / adds", "float32"): 1.6, ("reduce / add", "float16"): 10.0}
CPU_BARS_FROM_NBYTES = 256 << 20
CUDA_BAR = 0.9
CUDA_BAR_FROM_NBYTES = 1 << 30


@dataclass(frozen=True)
class KernelComparison:
    """One kernel against one peer: `ratio` above 1 means that the kernel is the better."""

    comparison: str
    kernel: str
    dtype: str
    nbytes: int
    inputs: int
    time_s: tuple[float, ...]
    peer_time_s: tuple[float, ...]
    bandwidth_gbytes_per_s: float
    ratio: float
    bar: float | None
    wrong: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--bytes", default="256MiB", metavar="SIZE,...", help="sizes of one array (default 256MiB)")
    parser.add_argument(
        "--dtype", default="float32,float16,bfloat16", metavar="D,...", help="default float32,float16,bfloat16"
    )
    parser.add_argument("--inputs", type=int, default=7, metavar="K", help="inputs of the fold (default 7)")
    parser.add_argument("--iterations", type=int, default=7, metavar="N", help="timed calls of each (default 7)")
    parser.add_argument("--check", action="store_true", help="exit 1 where a bar is missed, too")
    parser.add_argument("--json", metavar="FILE", help="write everything, raw samples too ('-' for standard output)")


def run(args: argparse.Namespace) -> int:
    comparisons = measure(args)
    if args.json:
        report.write_json(args.json, report.envelope(device=args.device, results=[asdict(c) for c in comparisons]))
    if args.json != "-":
        print_comparisons(comparisons)
    missed = [c for c in comparisons if c.bar is not None and c.ratio < c.bar]
    return 1 if any(c.wrong for c in comparisons) or (args.check and missed) else 0


def measure(args: argparse.Namespace) -> list[KernelComparison]:
    """The KernelComparisons of every size and dtype asked for.

    Raises:
        InputError: a size, dtype or count that cannot be.
        Unavailable: no GPU for --device cuda.
    """
    if args.inputs < 2 or args.iterations < 1:
        raise InputError(f"--inputs, --iterations: got {args.inputs} and {args.iterations}, expected at least 2 and 1")
    dtypes = [find_dtype(name.strip()) for name in args.dtype.split(",")]
    for dtype in dtypes:
        check_op("sum", dtype)
    sizes = parse_sizes(args.bytes, "--bytes", copies=args.inputs + 2)
    bench = _bench(args.device)
    results = []
    for nbytes in sizes:
        for dtype in dtypes:
            if nbytes < dtype.nbytes:
                raise InputError(f"--bytes: got {nbytes}, expected at least one {dtype.name}")
            report.progress(f"{dtype.name} {format_nbytes(nbytes)}")
            results += compare(bench, dtype, nbytes, args.inputs, args.iterations)
    report.progress("")
    return results


def print_comparisons(comparisons: Sequence[KernelComparison]) -> None:
    """The table for people."""
    columns = [
        ("comparison", ""), ("kernel", ""), ("dtype", ""), ("size", ""), ("k", ""), ("time", ""), ("bandwidth", "GB/s"),
        ("ratio", ""), ("bar", ""), ("#wrong", ""),
    ]  # fmt: skip
    rows = [
        (
            c.comparison, c.kernel, c.dtype, format_nbytes(c.nbytes), c.inputs,
            format_time(statistics.median(c.time_s)),
            f"{c.bandwidth_gbytes_per_s:.1f}", f"{c.ratio:.2f}", "-" if c.bar is None else f"{c.bar:g}", c.wrong,
        )
        for c in comparisons
    ]  # fmt: skip
    report.print_table(columns, rows)


def compare(bench: _Cpu | _Cuda, dtype: Dtype, nbytes: int, num_inputs: int, iterations: int) -> list[KernelComparison]:
    """The KernelComparisons of one dtype and size: out = x0, then each contender on it, over and over.

    Args:
        bench: where arrays live and how a call is timed.
    """
    count = nbytes // dtype.nbytes
    arrays = [bench.values(dtype, count, i) for i in range(num_inputs)]
    out = bench.values(dtype, count, 0)
    contenders: dict[str, tuple[int, int, Callable[[], object]]] = {"copy": (2, 1, lambda: bench.copy(out, arrays[0]))}
    for kernel, reduce in bench.kernels.items():
        add_in = partial(reduce, "sum", out, dtype=dtype.name)
        contenders[f"reduce {kernel}"] = (3, 2, partial(add_in, arrays[1]))
        contenders[f"fold {kernel}"] = (num_inputs + 1, num_inputs, partial(add_in, *arrays[1:]))
    # To NumPy and CuPy a bfloat16 array is one of uint16.
    if dtype.name != "bfloat16":
        contenders["add"] = (3, 2, lambda: bench.add(out, arrays[1:2]))
        contenders["adds"] = (3 * (num_inputs - 1), num_inputs, lambda: bench.add(out, arrays[1:]))
    times: dict[str, list[float]] = {name: [] for name in contenders}
    wrong = dict.fromkeys(contenders, 0)
    for i in range(iterations + 1):
        for name, (_, summed, call) in contenders.items():
            bench.copy(out, arrays[0])
            elapsed_s = bench.time(call)
            if i:
                times[name].append(elapsed_s)
            if i in (0, iterations):
                wrong[name] += bench.count_wrong(dtype, out, summed)
    moved = {name: nbytes * factor for name, (factor, _, _) in contenders.items()}
    found = []
    for kernel in bench.kernels:
        for label, ours, peer in (
            ("reduce / copy", f"reduce {kernel}", "copy"),
            ("reduce / add", f"reduce {kernel}", "add"),
            ("fold / copy", f"fold {kernel}", "copy"),
            ("fold / adds", f"fold {kernel}", "adds"),
        ):
            if peer not in contenders:
                continue
            # Against a copy bandwidths are compared, since it moves less; against additions, which do the same, times.
            weight = moved[ours] / moved[peer] if peer == "copy" else 1.0
            comparison = KernelComparison(
                comparison=label,
                kernel=kernel,
                dtype=dtype.name,
                nbytes=nbytes,
                inputs=num_inputs if label.startswith("fold") else 2,
                time_s=tuple(times[ours]),
                peer_time_s=tuple(times[peer]),
                bandwidth_gbytes_per_s=moved[ours] / statistics.median(times[ours]) / 1e9,
                ratio=weight * statistics.median(p / t for p, t in zip(times[peer], times[ours], strict=True)),
                bar=bench.bar(label, dtype.name, nbytes, num_inputs),
                wrong=wrong[ours],
            )
            found.append(comparison)
    return found


def _bench(device: str) -> _Cpu | _Cuda:
    if device == "cpu":
        return _Cpu()
    from lanterne.kernels.arrays import require_device

    require_device()
    return _Cuda()


class _Arrays:
    """What both devices share: `xp`, the module of the arrays, and `kernels`, name -> a function like `reduce`."""

    xp: Any
    kernels: dict[str, Callable[..., None]]

    def values(self, dtype: Dtype, count: int, first: int, num_summed: int = 1) -> Any:
        """(count,) whole numbers: the sum, over `num_summed` inputs from `first` on, of (position + input) modulo 7.

        They tell inputs and positions apart, and their sums are exact in every dtype.
        """
        pattern: Any = np.sum([(np.arange(7) + i) % 7 for i in range(first, first + num_summed)], axis=0)
        if dtype.name == "bfloat16":
            pattern = (pattern.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        else:
            pattern = pattern.astype(dtype.name)
        return self.xp.tile(self.xp.asarray(pattern), -(-count // 7))[:count]

    def count_wrong(self, dtype: Dtype, out: Any, num_summed: int) -> int:
        """Elements of `out` that are not the sum of the first `num_summed` inputs."""
        return int((out != self.values(dtype, out.size, 0, num_summed)).sum())

    def copy(self, out: Any, array: Any) -> None:
        self.xp.copyto(out, array)

    def add(self, out: Any, arrays: Sequence[Any]) -> None:
        for array in arrays:
            self.xp.add(out, array, out=out)


class _Cpu(_Arrays):
    """NumPy arrays, timed by the clock; one thread."""

    def __init__(self) -> None:
        from lanterne.kernels.reduce import reduce

        self.xp: Any = np
        self.kernels: dict[str, Callable[..., None]] = {"llvm": reduce}

    def time(self, call: Callable[[], object]) -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    def bar(self, label: str, dtype_name: str, nbytes: int, num_inputs: int) -> float | None:
        if nbytes < CPU_BARS_FROM_NBYTES or (label == "fold / adds" and num_inputs != 7):
            return None
        return CPU_BARS.get((label, dtype_name))


class _Cuda(_Arrays):
    """CuPy arrays, timed by events of the current stream."""

    def __init__(self) -> None:
        from lanterne.kernels.arrays import import_cupy
        from lanterne.kernels.cuda.reduce_on_device import IMPLEMENTATIONS, prepare, reduce
        from lanterne.kernels.cuda.spin import elapsed_s

        self.xp: Any = import_cupy()
        self._elapsed_s: Callable[[Any, Callable[[], object]], float] = elapsed_s
        self.kernels: dict[str, Callable[..., None]] = {}
        for name in IMPLEMENTATIONS:
            try:
                prepare("sum", "float32", 2, name)
            except Unavailable as error:
                print(f"lanterne: kernels: {name} left out: {error}", file=sys.stderr)
                continue
            self.kernels[name] = partial(reduce, implementation=name)

    def time(self, call: Callable[[], object]) -> float:
        return self._elapsed_s(self.xp.cuda.get_current_stream(), call)

    def bar(self, label: str, dtype_name: str, nbytes: int, num_inputs: int) -> float | None:
        return CUDA_BAR if label in ("reduce / copy", "fold / copy") and nbytes >= CUDA_BAR_FROM_NBYTES else None
