"""`lanterne info --kernels`: what each GPU kernel takes of a multiprocessor, as a table and JSON; no GPU is needed."""

import argparse
from typing import Any, TextIO

from lanterne.bench.output import report
from lanterne.bench.output.units import MAX_DIGITS, format_count, format_nbytes
from lanterne.errors import InputError

INPUTS = "1,2,4,8,16,32"
# Some 500 addresses are the 4 KiB that CUDA took as a kernel's parameters before version 12.1.
MOST_INPUTS = 500


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this part of `info`."""
    parser.add_argument(
        "--kernels", action="store_true", help="compile the GPU kernels and tell registers, spills, occupancy of each"
    )
    parser.add_argument(
        "--inputs", default=INPUTS, metavar="K,K-K", help=f"of --kernels: numbers to fold (default {INPUTS})"
    )
    parser.add_argument("--dtypes", metavar="NAME,NAME", help="of --kernels (default: all)")
    parser.add_argument("--ops", default="sum,max", metavar="OP,OP", help="of --kernels, or all (default sum,max)")
    parser.add_argument("--archs", metavar="ARCH,ARCH", help="of --kernels (default sm_80,sm_90,sm_100)")


def parse_inputs(text: str) -> list[int]:
    """The numbers in a list such as "2,8-10": 2, 8, 9, 10.

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
    from lanterne.kernels.cuda.occupancy import ARCHS, OPS, kernel_resources
    from lanterne.kernels.dtypes import COMPLEX, DTYPES

    inputs = parse_inputs(args.inputs)
    dtypes, archs = args.dtypes or ",".join((*DTYPES, *COMPLEX)), args.archs or ",".join(ARCHS)
    ops = OPS if args.ops == "all" else args.ops.split(",")
    kernels = []
    for kernel in kernel_resources(inputs, dtypes.split(","), archs.split(","), ops):
        kernels.append(kernel)
        report.progress(f"{len(kernels)} kernels compiled")
    report.progress("")
    report.tell(args.json, report.envelope(kernels=kernels), _print)
    return int(any(kernel["spill_bytes"] for kernel in kernels))


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
