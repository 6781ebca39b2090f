"""Compile the GPU kernels and report what each takes of a multiprocessor: registers, spills, occupancy. Needs no GPU.

./run evaluate gpu-kernels --inputs 2,8,32 --dtypes float32,bfloat16
./run evaluate gpu-kernels --inputs 1-32 --ops all     all 10,000; exit code 1 if one spills
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

from lanterne.bench.output import report
from lanterne.bench.output.options import add_json
from lanterne.bench.output.units import MAX_DIGITS, format_count, format_nbytes, whole
from lanterne.errors import InputError
from lanterne.transport.job.guard import set_parent_death_signal

if TYPE_CHECKING:
    from evaluation.gpu.occupancy import KernelResources

# The kernels of an architecture whose elements are of a dtype; None: those that have none.
Part: TypeAlias = tuple[str, str | None]

INPUTS = "1,2,4,8,16,32"
# Some 500 addresses are the 4 KiB that CUDA took as a kernel's parameters before version 12.1.
MOST_INPUTS = 500
FEW_KERNELS = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--inputs", default=INPUTS, metavar="K,K-K", help=f"numbers to fold (default {INPUTS})")
    parser.add_argument("--dtypes", metavar="NAME,NAME", help="default: all")
    parser.add_argument("--ops", default="sum,max", metavar="OP,OP", help="or all (default sum,max)")
    parser.add_argument("--archs", metavar="ARCH,ARCH", help="default sm_80,sm_90,sm_100")
    parser.add_argument("--jobs", type=whole(1), metavar="J", help="processes (default: one a core)")
    add_json(parser, "every kernel")


def parse_inputs(text: str) -> list[int]:
    """Return the numbers in a list such as "2,8-10": 2, 8, 9, 10.

    Raises:
        InputError: something else, or none of 1 to MOST_INPUTS.
    """
    found: list[int] = []
    for part in text.split(","):
        ends = [end if end.isascii() and end.isdecimal() and len(end) <= MAX_DIGITS else "0" for end in part.split("-")]
        numbers = range(int(ends[0]), int(ends[-1]) + 1)
        if len(ends) > 2 or not numbers or numbers[0] < 1 or numbers[-1] > MOST_INPUTS:
            raise InputError(f"--inputs: got {part!r}, expected a number or a range, 2 or 1-32, of 1 to {MOST_INPUTS}")
        found += numbers
    return found


def run(args: argparse.Namespace) -> int:
    """Compile the kernels, print and write what they take; exit code 1 if one spills."""
    from evaluation.gpu.occupancy import ARCHS, OPS, check_kernels
    from lanterne.kernels.dtypes import COMPLEX, DTYPES

    inputs = parse_inputs(args.inputs)
    dtypes = args.dtypes.split(",") if args.dtypes else [*DTYPES, *COMPLEX]
    archs = args.archs.split(",") if args.archs else [*ARCHS]
    ops = OPS if args.ops == "all" else args.ops.split(",")
    check_kernels(inputs, dtypes, archs, ops)
    parts: list[Part] = [(arch, dtype) for arch in archs for dtype in (*dtypes, None)]
    # A few kernels are compiled sooner than processes start.
    is_short = len(parts) * len(inputs) * len(ops) <= FEW_KERNELS
    jobs = min(args.jobs or os.cpu_count() or 1, 1 if is_short else len(parts))
    kernels: list[KernelResources] = []
    for found in _compiled(parts, inputs, ops, jobs):
        kernels += found
        report.progress(f"{len(kernels)} kernels compiled")
    report.progress("")
    report.tell(args.json, report.envelope(kernels=kernels), _print)
    return int(any(kernel["spill_bytes"] for kernel in kernels))


def _compiled(
    parts: Sequence[Part], inputs: Sequence[int], ops: Sequence[str], jobs: int
) -> Iterator[list[KernelResources]]:
    """Yield what the kernels of each of `parts` take, in order, from `jobs` processes: NVRTC compiles one at a time."""
    what = partial(_part, inputs=inputs, ops=ops)
    if jobs == 1:
        yield from map(what, parts)
        return
    tie = (signal.SIGKILL, os.getpid())
    with ProcessPoolExecutor(jobs, get_context("spawn"), set_parent_death_signal, tie) as pool:
        try:
            yield from pool.map(what, parts)
        finally:
            pool.shutdown(cancel_futures=True)


def _part(part: Part, inputs: Sequence[int], ops: Sequence[str]) -> list[KernelResources]:
    from evaluation.gpu.occupancy import kernels_of_dtype, kernels_that_wait

    arch, dtype = part
    return list(kernels_that_wait(arch) if dtype is None else kernels_of_dtype(dtype, arch, inputs, ops))


def _print(document: dict[str, Any], file: TextIO) -> None:
    kernels = document["kernels"]
    spilling = sum(kernel["spill_bytes"] > 0 for kernel in kernels)
    columns = [
        *(("kernel", ""), ("dtype", ""), ("inputs", ""), ("arch", ""), ("registers", "thread"), ("spilled", "thread")),
        *(("shared", "block"), ("threads", "block"), ("blocks", "at once"), ("occupancy", "%"), ("in flight", "SM")),
    ]
    rows = [
        [
            *("-" if kernel[key] is None else kernel[key] for key in ("name", "dtype", "inputs", "arch", "registers")),
            *(format_nbytes(kernel[key]) for key in ("spill_bytes", "shared_bytes")),
            *(kernel[key] for key in ("threads_per_block", "blocks_per_multiprocessor")),
            f"{100 * kernel['occupancy']:.0f}",
            "-" if (flight := kernel["bytes_in_flight_per_multiprocessor"]) is None else format_nbytes(flight),
        ]
        for kernel in kernels
    ]
    notes = [f"{format_count(len(kernels), 'kernel')} from their machine code (NVRTC), {spilling} with spills"]
    report.print_table(columns, rows, notes=notes, left=(0, 1, 3), file=file)
