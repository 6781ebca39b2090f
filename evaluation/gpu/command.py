"""Measure this machine's GPU path: reductions, staging, delays. Writes gpu-NAME.json and gpu-NAME.md to a folder.

  ./run evaluate gpu --name h200                     everything, in about three minutes
  ./run evaluate gpu --name h200 --bytes 256MiB      smaller arrays
  ./run evaluate gpu --name h200 --only kernels,grids
  ./run evaluate gpu.session --help    all of tests/gpu and this, on a machine that one has for minutes

The files are written anew after each section (kernels, grids, staging, delegates, gemm, delays, schedules, groups,
launches, links); one that fails is named in them, the others go on, and the exit code is 1. With --only, what the files
hold of other sections stays: after a fault on the device nothing more can be measured in one process, but in the next.
Every figure is taken beside its peer in the same run, in turn: reductions beside the device's copy; staged copies
beside plain pinned copies; handing a message to delegates beside a blocking copy; a matrix product with staging beside
it, and without; delays beside what was asked for; reductions on grids of other sizes than ours, for whoever tunes them;
schedules over nccl, eager and as captured graphs, beside ncclAllReduce; groups of NCCL's by messages and bytes;
launches of graphs by their length; and emulated links beside what was asked for, on --ranks ranks (default: the GPUs,
at least three; sharing one is no figure of speed).
Bars: reductions and staging 0.9 of their peer, ring 0.85 and late_join 0.8 of ncclAllReduce, the product at most 1.03
of its time alone, delays and links within 2 % or 5 us, the launch of a captured schedule, and the choice of one by who
is late, 20 us of the CPU. Results are compared with the CPU's, every element.
With --check a missed bar is exit code 1; a wrong result always is.
"""

import argparse
import json
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from evaluation.gpu.figures import (
    PARTS,
    Figure,
    collective_figures,
    delay_figures,
    delegate_figures,
    gemm_figures,
    grid_figures,
    staging_figures,
)
from evaluation.speed import kernels
from evaluation.speed.kernels import KernelComparison
from lanterne.bench.output import report
from lanterne.bench.output.units import format_figure, format_nbytes, parse_nbytes
from lanterne.errors import InputError, LanterneError

Measured = TypeVar("Measured", KernelComparison, Figure)
SECTIONS = ("kernels", "grids", "staging", "delegates", "gemm", "delays", *PARTS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--name", required=True, help="of this machine's GPU, for the files' names: letters, digits, - and _"
    )
    parser.add_argument(
        "--out", default="evaluation/results", metavar="FOLDER", help="where the files go (default evaluation/results)"
    )
    parser.add_argument(
        "--bytes",
        default="1GiB",
        metavar="SIZE",
        help="of the arrays (default 1GiB), but for those of delegates and collectives",
    )
    parser.add_argument("--iterations", type=int, default=7, metavar="N", help="timed calls of each (default 7)")
    parser.add_argument("--ranks", type=int, metavar="N", help="of the collectives over nccl; 0: leave them out")
    parser.add_argument(
        "--only", default=",".join(SECTIONS), metavar="SECTION,...", help=f"some of {', '.join(SECTIONS)}"
    )
    parser.add_argument("--check", action="store_true", help="exit 1 where a bar is missed, too")


def run(args: argparse.Namespace) -> int:
    nbytes = parse_nbytes(args.bytes, "--bytes")
    if not args.name.replace("-", "").replace("_", "").isalnum():
        raise InputError(f"--name: got {args.name!r}, expected letters, digits, - and _")
    if args.iterations < 1 or nbytes < 1 << 20:
        raise InputError(f"--iterations, --bytes: got {args.iterations} and {args.bytes}, expected at least 1 and 1MiB")
    only = [name.strip() for name in args.only.split(",")]
    unknown = [name for name in only if name not in SECTIONS]
    if unknown:
        raise InputError(f"--only: got {unknown[0]!r}, expected some of {', '.join(SECTIONS)}")
    from lanterne.kernels.arrays import require_device

    require_device()
    try:
        Path(args.out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out: cannot make folder {args.out}: {error.strerror}") from error
    # Asked for now: a device with a fault tells nothing more.
    stem, environment = Path(args.out) / f"gpu-{args.name}", report.environment() | device_environment()
    comparisons, figures, failures = ([], [], {}) if set(only) == set(SECTIONS) else read(stem)
    measured: list[KernelComparison] = []
    taken: list[Figure] = []
    failed = False
    for name in (name for name in SECTIONS if name in only):
        failures.pop(name, None)
        try:
            if name == "kernels":
                measured += _kernels(args)
            elif name in PARTS:
                taken += collective_figures(name, Path(f"{stem}.{name}.json"), args.ranks)
            else:
                taken += _figures(name, args, nbytes)
        except Exception as error:
            failed = True
            failures[name] = str(error) if isinstance(error, LanterneError) else traceback.format_exc()
            print(f"lanterne: gpu: {name}: {failures[name]}", file=sys.stderr)
        write(stem, replaced(comparisons, measured), replaced(figures, taken), failures, environment)
    if measured:
        kernels.print_comparisons(measured)
    if taken:
        print_figures(taken)
    wrong = any(c.wrong for c in measured)
    missed = any(not figure.ok for figure in taken)
    missed |= any(c.bar is not None and c.ratio < c.bar for c in measured)
    return 1 if failed or wrong or (args.check and missed) else 0


def _kernels(args: argparse.Namespace) -> list[KernelComparison]:
    own = {"device": "cuda", "dtype": "float32,float16,bfloat16,int8", "inputs": 7}
    return kernels.measure(argparse.Namespace(bytes=args.bytes, iterations=args.iterations, **own))


def _figures(name: str, args: argparse.Namespace, nbytes: int) -> list[Figure]:
    """The Figures of section `name`."""
    sections: dict[str, Callable[[], list[Figure]]] = {
        "grids": lambda: grid_figures(nbytes, args.iterations),
        "staging": lambda: staging_figures(nbytes, args.iterations),
        "delegates": lambda: delegate_figures(args.iterations),
        "gemm": lambda: gemm_figures(nbytes, args.iterations),
        "delays": delay_figures,
    }
    return sections[name]()


def figure_rows(figures: Sequence[Figure]) -> list[tuple[str, str, str, str]]:
    """(name, value, bar, verdict) of each figure, as text; no verdict where there is no bar."""
    return [
        (f.name, format_figure(f.value, f.unit, f.bar), f.bar, "MISSED" if not f.ok else "" if f.bar == "-" else "ok")
        for f in figures
    ]


def print_figures(figures: Sequence[Figure]) -> None:
    report.print_table([("figure", ""), ("value", ""), ("bar", ""), ("", "")], figure_rows(figures))


def markdown(
    comparisons: Sequence[KernelComparison],
    figures: Sequence[Figure],
    failures: Mapping[str, str],
    environment: Mapping[str, object],
) -> str:
    """The report as a Markdown document."""
    lines = ["# GPU path", "", f"Environment: {', '.join(f'{key} {value}' for key, value in environment.items())}.", ""]
    for name, text in failures.items():
        lines += [f"**{name} failed:** {text.strip().splitlines()[-1]}", ""]
    lines += [
        "| comparison | kernel | dtype | size | k | GB/s | ratio | bar | wrong |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for c in comparisons:
        bar = "-" if c.bar is None else f"{c.bar:g}"
        lines.append(
            f"| {c.comparison} | {c.kernel} | {c.dtype} | {format_nbytes(c.nbytes)} | {c.inputs} "
            f"| {c.bandwidth_gbytes_per_s:.0f} | {c.ratio:.2f} | {bar} | {c.wrong} |"
        )
    lines += ["", "| figure | value | bar | |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in figure_rows(figures)]
    return "\n".join(lines) + "\n"


def read(stem: Path) -> tuple[list[KernelComparison], list[Figure], dict[str, str]]:
    """(Comparisons, Figures, failures) of STEM.json, all empty where there is none.

    Raises:
        InputError: the file is none of `write`'s.
    """
    file = Path(f"{stem}.json")
    if not file.exists():
        return [], [], {}
    try:
        document = json.loads(file.read_text())
        found = [KernelComparison(**record) for record in document["results"]]
        return found, [Figure(**record) for record in document["figures"]], dict(document["failures"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file}: got {error!r}, expected what `evaluate gpu` has written; remove it") from None


def replaced(before: list[Measured], found: list[Measured]) -> list[Measured]:
    """`found`, after what of `before` it does not measure anew."""
    names = {_subject(item) for item in found}
    return [item for item in before if _subject(item) not in names] + found


def _subject(item: KernelComparison | Figure) -> object:
    """What was measured."""
    if isinstance(item, Figure):
        return item.name
    return item.comparison, item.kernel, item.dtype, item.nbytes, item.inputs


def write(
    stem: Path,
    comparisons: Sequence[KernelComparison],
    figures: Sequence[Figure],
    failures: Mapping[str, str],
    environment: Mapping[str, object],
) -> None:
    """Write STEM.json and STEM.md. `failures`: section -> text of its error.

    Raises:
        InputError: the folder does not exist or cannot be written.
    """
    document = report.envelope(
        results=[asdict(c) for c in comparisons], figures=[asdict(f) for f in figures], failures=failures
    )
    report.write_json(f"{stem}.json", document | {"environment": environment})
    report.write_atomically(f"{stem}.md", markdown(comparisons, figures, failures, environment).encode())


def device_environment() -> dict[str, str | int]:
    """Name of the GPU, driver and runtime versions."""
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    return {
        "gpu": properties["name"].decode(),
        "driver": cupy.cuda.runtime.driverGetVersion(),
        "cuda": cupy.cuda.runtime.runtimeGetVersion(),
    }
