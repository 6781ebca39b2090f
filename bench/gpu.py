"""Measure this machine's GPU path: reductions, staging, delays. Writes gpu-NAME.json and gpu-NAME.md to a folder.

  lanterne bench gpu --name h200                     everything, in about three minutes
  lanterne bench gpu --name h200 --bytes 256MiB      smaller arrays
  lanterne bench gpu --name h200 --only kernels,grids
  python -m lanterne.bench.gpu_session --help        all of tests/gpu and this, on a machine that one has for minutes

The files are written anew after each section (kernels, grids, staging, gemm, delays, collectives); one that fails is
named in them, the others go on, and the exit code is 1. Every figure is taken beside its peer in the same run, in turn:
reductions beside the device's copy; staged copies beside plain pinned copies; a matrix product with staging beside it,
and without; delays beside what was asked for; reductions on grids of other sizes than ours, for whoever tunes them;
collectives over nccl, eager and as captured graphs, beside ncclAllReduce, on --ranks ranks (default: the GPUs, at least
two; sharing one is no figure of speed).
Bars: reductions and staging 0.9 of their peer, the product at most 1.03 of its time alone, delays within 2 % or 5 us,
the launch of a captured schedule 20 us of the CPU. Results are compared with the CPU's, every element.
With --check a missed bar is exit code 1; a wrong result always is.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

from ..errors import InputError, LanterneError
from . import kernels, report
from .units import format_nbytes, format_time, parse_nbytes

STAGING_BAR = 0.9
GEMM_BAR = 1.03
DELAYS_S = (10e-6, 50e-6, 200e-6, 1e-3, 10e-3, 100e-3)
# Blocks per multiprocessor; cuda_reduce launches 8.
GRIDS = (2, 4, 8, 16, 32, 64)
SECTIONS = ("kernels", "grids", "staging", "gemm", "delays", "collectives")
# After which a job over nccl has hung.
JOB_S = 55.0
DELAY_RELATIVE_BAR, DELAY_ABSOLUTE_BAR_S = 0.02, 5e-6


@dataclass(frozen=True)
class Figure:
    """One measured figure against its bar; `samples` are the raw values behind `value`."""

    name: str
    value: float
    unit: str
    bar: str
    ok: bool
    samples: tuple


def add_arguments(parser):
    parser.add_argument(
        "--name", required=True, help="of this machine's GPU, for the files' names: letters, digits, - and _"
    )
    parser.add_argument(
        "--out", default="bench/results", metavar="FOLDER", help="where the files go (default bench/results)"
    )
    parser.add_argument("--bytes", default="1GiB", metavar="SIZE", help="of the arrays (default 1GiB)")
    parser.add_argument("--iterations", type=int, default=7, metavar="N", help="timed calls of each (default 7)")
    parser.add_argument("--ranks", type=int, metavar="N", help="of the collectives over nccl; 0: leave them out")
    parser.add_argument(
        "--only", default=",".join(SECTIONS), metavar="SECTION,...", help=f"some of {', '.join(SECTIONS)}"
    )
    parser.add_argument("--check", action="store_true", help="exit 1 where a bar is missed, too")


def run(args):
    nbytes = parse_nbytes(args.bytes, "--bytes")
    if not args.name.replace("-", "").replace("_", "").isalnum():
        raise InputError(f"--name: got {args.name!r}, expected letters, digits, - and _")
    if args.iterations < 1 or nbytes < 1 << 20:
        raise InputError(f"--iterations, --bytes: got {args.iterations} and {args.bytes}, expected at least 1 and 1MiB")
    only = [name.strip() for name in args.only.split(",")]
    unknown = [name for name in only if name not in SECTIONS]
    if unknown:
        raise InputError(f"--only: got {unknown[0]!r}, expected some of {', '.join(SECTIONS)}")
    from ..kernels.arrays import require_device

    require_device()
    try:
        Path(args.out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out: cannot make folder {args.out}: {error.strerror}") from error
    comparisons, figures, failures = [], [], {}
    for name in SECTIONS:
        if name not in only:
            continue
        try:
            found = _section(name, args, nbytes)
            (comparisons if name == "kernels" else figures).extend(found)
        except Exception as error:
            failures[name] = str(error) if isinstance(error, LanterneError) else traceback.format_exc()
            print(f"lanterne: gpu: {name}: {failures[name]}", file=sys.stderr)
        write(Path(args.out) / f"gpu-{args.name}", comparisons, figures, failures)
    kernels.print_comparisons(comparisons)
    print_figures(figures)
    missed = any(not figure.ok for figure in figures) or any(c.bar is not None and c.ratio < c.bar for c in comparisons)
    return 1 if failures or any(c.wrong for c in comparisons) or (args.check and missed) else 0


def _section(name, args, nbytes):
    """What section `name` measures: Comparisons of "kernels", else Figures."""
    if name == "kernels":
        return kernels.measure(
            argparse.Namespace(
                device="cuda",
                bytes=args.bytes,
                dtype="float32,float16,bfloat16,int8",
                inputs=7,
                iterations=args.iterations,
            )
        )
    return {
        "grids": lambda: grid_figures(nbytes, args.iterations),
        "staging": lambda: staging_figures(nbytes, args.iterations),
        "gemm": lambda: gemm_figures(nbytes, args.iterations),
        "delays": delay_figures,
        "collectives": lambda: collective_figures(args.ranks),
    }[name]()


def grid_figures(nbytes, iterations):
    """Bandwidth of float32 reductions of two and of seven inputs over that of a copy, by blocks per multiprocessor."""
    import cupy

    from ..kernels.cuda_delay import elapsed_s
    from ..kernels.cuda_reduce import BLOCKS_PER_MULTIPROCESSOR, Kernel, prepare

    stream = cupy.cuda.Stream(non_blocking=True)
    arrays = [cupy.ones(nbytes // 4, cupy.float32) for _ in range(7)]
    addresses = [array.data.ptr for array in arrays]
    cupy.cuda.Device().synchronize()
    figures = []

    def copy():
        with stream:
            cupy.copyto(arrays[0], arrays[1])

    for num_inputs in (2, 7):
        ours = prepare("sum", "float32", num_inputs)
        calls = {0: copy}
        for blocks in GRIDS:
            processors = ours.num_multiprocessors * blocks / BLOCKS_PER_MULTIPROCESSOR
            kernel = Kernel(ours.element_nbytes, ours.num_arrays, int(processors), ours.launch)
            inputs = (addresses[0], *addresses[:num_inputs])
            calls[blocks] = lambda kernel=kernel, inputs=inputs: kernel(arrays[0].size, *inputs, stream=stream)
        times_s = {blocks: [] for blocks in calls}
        for i in range(iterations + 1):
            for blocks, call in calls.items():
                time_s = elapsed_s(stream, call)
                if i:
                    times_s[blocks].append(time_s)
        for blocks in GRIDS:
            pairs = zip(times_s[0], times_s[blocks], strict=True)
            ratios = tuple((num_inputs + 1) / 2 * peer / ours_s for peer, ours_s in pairs)
            name = f"float32 sum of {num_inputs} on {blocks} blocks a multiprocessor, over a copy"
            figures.append(Figure(name, statistics.median(ratios), "", "-", True, ratios))
    return figures


def staging_figures(nbytes, iterations):
    """Bandwidth of staged copies over that of a plain pinned copy, each direction.

    Raises:
        LanterneError: the bytes did not arrive as they were.
    """
    import cupy

    from ..kernels.cuda_runtime import CudaRuntime
    from ..kernels.staging import Stager, pinned_empty

    runtime = CudaRuntime()
    stager, stream = Stager(runtime), runtime.new_stream()
    device = cupy.arange(nbytes // 4, dtype=cupy.uint32).view(cupy.uint8)
    host = pinned_empty(runtime, device.nbytes)
    cupy.cuda.Device().synchronize()
    figures = []
    for direction in ("device to host", "host to device"):
        pointers = (
            (host.ctypes.data, device.data.ptr)
            if direction == "device to host"
            else (device.data.ptr, host.ctypes.data)
        )

        def plain(pointers=pointers):
            runtime.copy(*pointers, host.nbytes, stream)
            stream.synchronize()

        def staged(direction=direction):
            start = (
                stager.to_host(host, device.data.ptr)
                if direction == "device to host"
                else stager.to_device(device.data.ptr, host)
            )
            start.wait(60)

        plain(), staged()
        ratios = tuple(_time_s(plain) / _time_s(staged) for _ in range(iterations))
        ratio = statistics.median(ratios)
        figures.append(
            Figure(
                f"staging, {direction}, over a plain copy", ratio, "", f">= {STAGING_BAR}", ratio >= STAGING_BAR, ratios
            )
        )
    if (host.view("u4")[:: 1 << 10] != cupy.arange(nbytes // 4, dtype=cupy.uint32)[:: 1 << 10].get()).any():
        raise LanterneError("staging: the bytes did not arrive as they were")
    return figures


def gemm_figures(nbytes, iterations, size=8192):
    """Time of a float16 matrix product while messages are staged both ways, over its time alone."""
    import cupy

    from ..kernels.cuda_delay import elapsed_s
    from ..kernels.cuda_runtime import CudaRuntime
    from ..kernels.staging import Stager, pinned_empty

    runtime = CudaRuntime()
    stager = Stager(runtime)
    a, b = (cupy.ones((size, size), cupy.float16) for _ in range(2))
    c = cupy.empty_like(a)
    down, up = (cupy.zeros(nbytes, cupy.uint8) for _ in range(2))
    down_host, up_host = (pinned_empty(runtime, nbytes) for _ in range(2))
    compute, idle = runtime.new_stream(), runtime.new_stream()
    cupy.cuda.Device().synchronize()

    def products():
        with compute:
            for _ in range(5):
                cupy.matmul(a, b, out=c)

    def gemm_s():
        return elapsed_s(compute, products)

    gemm_s()
    ratios = []
    for _ in range(iterations):
        alone_s = gemm_s()
        copies = [stager.to_host(down_host, down.data.ptr, idle), stager.to_device(up.data.ptr, up_host, idle)]
        ratios.append(gemm_s() / alone_s)
        for copy in copies:
            copy.wait(60)
    ratio = statistics.median(ratios)
    return [
        Figure(
            "matrix product beside staging, over alone", ratio, "", f"<= {GEMM_BAR}", ratio <= GEMM_BAR, tuple(ratios)
        )
    ]


def delay_figures(num_samples=20):
    """Error of a delay of each length, median, by both timers."""
    from ..kernels.cuda_delay import TIMERS, measure_delay

    figures = []
    for timer in TIMERS:
        for duration_s in DELAYS_S:
            samples = tuple(measure_delay(duration_s, num_samples, timer))
            error_s = statistics.median(abs(sample - duration_s) for sample in samples)
            allowed_s = max(DELAY_RELATIVE_BAR * duration_s, DELAY_ABSOLUTE_BAR_S)
            name = f"error of a delay of {format_time(duration_s)} by {timer}"
            figures.append(Figure(name, error_s, "s", f"<= {format_time(allowed_s)}", error_s <= allowed_s, samples))
    return figures


def collective_figures(num_ranks=None):
    """What gpu_ranks.py measures on `num_ranks` ranks over nccl; None: as many as there are GPUs, at least two.

    Raises:
        LanterneError: the job failed, and has found nothing before; it has said why.
    """
    from ..kernels.arrays import require_device
    from ..transport.launch import launch
    from ..transport.nccl_library import SHARED_GPU_ENVIRONMENT

    num_devices = require_device()
    num_ranks = max(2, num_devices) if num_ranks is None else num_ranks
    if not num_ranks:
        return []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        environment = SHARED_GPU_ENVIRONMENT if num_ranks > num_devices else {}
        command = [sys.executable, "-m", "lanterne.bench.gpu_ranks", str(file)]
        try:
            code = launch(command, num_ranks, "direct", timeout_s=JOB_S, env=environment)
            ended = f"ended with {code}" if code else ""
        except LanterneError as error:
            ended = str(error)
        found = json.loads(file.read_text()) if file.exists() else []
    if ended and not found:
        raise LanterneError(f"gpu: the job of {num_ranks} ranks over nccl: {ended}; --ranks 0 omits it")
    figures = [Figure(**(record | {"samples": tuple(record["samples"])})) for record in found]
    if ended:
        figures.append(Figure(f"the job of {num_ranks} ranks over nccl: {ended}", 1, "", "0", False, (1,)))
    return figures


def _time_s(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def figure_rows(figures):
    """(name, value, bar, verdict) of each figure, as text."""
    return [
        (f.name, format_time(f.value) if f.unit == "s" else f"{f.value:.3f}", f.bar, "ok" if f.ok else "MISSED")
        for f in figures
    ]


def print_figures(figures):
    report.print_table([("figure", ""), ("value", ""), ("bar", ""), ("", "")], figure_rows(figures))


def markdown(comparisons, figures, failures, environment):
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


def write(stem, comparisons, figures, failures=None):
    """Write STEM.json and STEM.md. `failures`: section -> text of its error.

    Raises:
        InputError: the folder does not exist or cannot be written.
    """
    environment = report.environment() | device_environment()
    failures = failures or {}
    document = report.envelope(
        results=[asdict(c) for c in comparisons], figures=[asdict(f) for f in figures], failures=failures
    )
    report.write_json(f"{stem}.json", document | {"environment": environment})
    report.write_atomically(f"{stem}.md", markdown(comparisons, figures, failures, environment).encode())


def device_environment():
    """Name of the GPU, driver and runtime versions."""
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    return {
        "gpu": properties["name"].decode(),
        "driver": cupy.cuda.runtime.driverGetVersion(),
        "cuda": cupy.cuda.runtime.runtimeGetVersion(),
    }
