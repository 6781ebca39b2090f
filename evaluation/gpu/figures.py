"""The figures of `./run evaluate gpu`: each is taken beside its peer, in turn, and says what it has to reach."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lanterne.bench.output.units import format_time
from lanterne.errors import LanterneError
from lanterne.transport.own_python import own_python

if TYPE_CHECKING:
    from lanterne.collectives.communicator import Communicator
    from lanterne.kernels.staging import Copy
    from lanterne.pipeline.device.device_stage import Device
    from lanterne.pipeline.planes.data_plane import DataPlane

STAGING_BAR = 0.9
GEMM_BAR = 1.03
DELAYS_S = (10e-6, 50e-6, 200e-6, 1e-3, 10e-3, 100e-3)
# Blocks per multiprocessor; a fold of kernels/cuda launches 32.
GRIDS = (2, 4, 8, 16, 32, 64)
# After which a job over nccl, where its step has no limit, and a staged copy have hung.
JOB_S, COPY_S = 100.0, 60.0
PARTS = ("schedules", "groups", "launches", "links")
DELEGATED_NBYTES = 64 << 20
DELAY_RELATIVE_BAR, DELAY_ABSOLUTE_BAR_S = 0.02, 5e-6


@dataclass(frozen=True)
class Figure:
    """One measured figure against its bar; `samples` are the raw values behind `value`."""

    name: str
    value: float
    unit: str
    bar: str
    ok: bool
    samples: tuple[float, ...]


def grid_figures(nbytes: int, iterations: int) -> list[Figure]:
    """Bandwidth of float32 reductions of two and of seven inputs over that of a copy, by blocks per multiprocessor."""
    import cupy

    from lanterne.kernels.cuda.reduce_on_device import BLOCKS_PER_MULTIPROCESSOR, Kernel, prepare
    from lanterne.kernels.cuda.spin import elapsed_s

    stream = cupy.cuda.Stream(non_blocking=True)
    arrays = [cupy.ones(nbytes // 4, cupy.float32) for _ in range(7)]
    addresses = [array.data.ptr for array in arrays]
    cupy.cuda.Device().synchronize()
    figures = []

    def copy() -> None:
        with stream:
            cupy.copyto(arrays[0], arrays[1])

    for num_inputs in (2, 7):
        ours = prepare("sum", "float32", num_inputs)
        calls: dict[int, Callable[[], object]] = {0: copy}
        for blocks in GRIDS:
            processors = ours.num_multiprocessors * blocks / BLOCKS_PER_MULTIPROCESSOR
            kernel = Kernel(ours.element_nbytes, ours.num_arrays, int(processors), ours.launch)
            inputs = (addresses[0], *addresses[:num_inputs])
            calls[blocks] = partial(kernel, arrays[0].size, *inputs, stream=stream)
        times_s: dict[int, list[float]] = {blocks: [] for blocks in calls}
        for i in range(iterations + 1):
            for blocks, call in calls.items():
                time_s = elapsed_s(stream, call)
                if i:
                    times_s[blocks].append(time_s)
        for blocks in GRIDS:
            pairs = zip(times_s[0], times_s[blocks], strict=True)
            ratios = tuple((num_inputs + 1) / 2 * peer / ours_s for peer, ours_s in pairs)
            name = f"float32 sum of {num_inputs} on {blocks} blocks a multiprocessor, over a copy"
            figures.append(_ratio_figure(name, ratios))
    return figures


def staging_figures(nbytes: int, iterations: int) -> list[Figure]:
    """Bandwidth of staged copies over that of a plain pinned copy, each direction.

    Raises:
        LanterneError: the bytes did not arrive as they were.
    """
    import cupy

    from lanterne.kernels.cuda.runtime import CudaRuntime
    from lanterne.kernels.staging import Stager, pinned_empty

    runtime = CudaRuntime()
    stager, stream = Stager(runtime), runtime.new_stream()
    sent = cupy.arange(nbytes // 4, dtype=cupy.uint32)
    device, host = sent.copy(), pinned_empty(runtime, sent.nbytes)
    here, there = host.ctypes.data, device.data.ptr
    # Before any plain copy, there and back: what was sent can only have been staged.
    stager.to_host(host, there).wait(COPY_S)
    device.fill(0)
    stager.to_device(there, host).wait(COPY_S)
    if int((device != sent).sum()):
        raise LanterneError("staging: the bytes did not arrive as they were")

    def ratio_of(dst: int, src: int, start: Callable[[], Copy]) -> tuple[float, ...]:
        def plain() -> None:
            runtime.copy(dst, src, host.nbytes, stream)
            stream.synchronize()

        plain()
        return tuple(_time_s(plain) / _time_s(lambda: start().wait(COPY_S)) for _ in range(iterations))

    samples = {
        "device to host": ratio_of(here, there, lambda: stager.to_host(host, there)),
        "host to device": ratio_of(there, here, lambda: stager.to_device(there, host)),
    }
    return [
        _ratio_figure(f"staging, {direction}, over a plain copy", ratios, STAGING_BAR)
        for direction, ratios in samples.items()
    ]


def delegate_figures(
    iterations: int, nbytes: int = DELEGATED_NBYTES, make_device: Callable[[Communicator], Device] | None = None
) -> list[Figure]:
    """What a message of a device costs the rank that computes, over a blocking copy to ordinary memory.

    Two ranks, threads of this process; delegates send over TCP what has landed.

    Args:
        make_device: a function of a Communicator that gives the Device of its rank; None for a CUDA device.

    Raises:
        LanterneError: the bytes did not arrive as they were.
    """
    from lanterne.collectives.jobs import spawn
    from lanterne.pipeline.device.device_stage import cuda_device
    from lanterne.pipeline.planes.plane_makers import make_plane

    shape, dtype = (nbytes,), np.dtype(np.uint8)
    content = (np.arange(nbytes) % 251).astype(np.uint8)

    def job(comm: Communicator) -> tuple[float, ...]:
        device = make_device(comm) if make_device else cuda_device(comm, own_stream=True)
        ratios: list[float] = []
        array, ordinary = device.xp.asarray(content), np.empty_like(content)
        with make_plane("delegate", comm, rails=("tcp",)) as plane:
            plane.stage_on(device)
            # The first time memory is pinned.
            for iteration in range(iterations + 1):
                if comm.rank:
                    buffer = plane.receive(shape, dtype, 0).wait()
                    if int((device.fetch(buffer) != array).sum()):
                        raise LanterneError("delegates: the bytes did not arrive as they were")
                    plane.release(buffer)
                else:
                    buffer = plane.lend(shape, dtype, 1)
                    blocking_s = _time_s(lambda: device.xp.asnumpy(array, out=ordinary))
                    handed_s = _time_s(partial(_send, plane, device, buffer, array))
                    ratios += [handed_s / blocking_s] if iteration else []
                plane.finish()
        return tuple(ratios)

    ratios = spawn(2, job, timeout_s=COPY_S)[0]
    name = f"rank's time for a message of {nbytes >> 20} MiB by delegates, over a blocking copy"
    return [Figure(name, statistics.median(ratios), "", "-", True, ratios)]


def _send(plane: DataPlane, device: Device, buffer: Any, array: Any) -> None:
    plane.send(device.fill(buffer, array), 1)


def gemm_figures(nbytes: int, iterations: int, size: int = 8192) -> list[Figure]:
    """Time of a float16 matrix product while messages are staged both ways, over its time alone.

    Raises:
        LanterneError: the messages were there before the product.
    """
    import cupy

    from lanterne.kernels.cuda.runtime import CudaRuntime
    from lanterne.kernels.cuda.spin import elapsed_s
    from lanterne.kernels.staging import Stager, pinned_empty

    runtime = CudaRuntime()
    stager = Stager(runtime)
    a, b = (cupy.ones((size, size), cupy.float16) for _ in range(2))
    c = cupy.empty_like(a)
    down, up = (cupy.zeros(nbytes, cupy.uint8) for _ in range(2))
    down_host, up_host = (pinned_empty(runtime, nbytes) for _ in range(2))
    compute, idle = runtime.new_stream(), runtime.new_stream()
    cupy.cuda.Device().synchronize()

    def products() -> None:
        with compute:
            for _ in range(5):
                cupy.matmul(a, b, out=c)

    def gemm_s() -> float:
        return elapsed_s(compute, products)

    gemm_s()
    ratios = []
    for _ in range(iterations):
        alone_s = gemm_s()
        copies = [stager.to_host(down_host, down.data.ptr, idle), stager.to_device(up.data.ptr, up_host, idle)]
        ratios.append(gemm_s() / alone_s)
        if any(copy.test() for copy in copies):
            raise LanterneError(f"gemm: the copies of {nbytes} bytes ended before the product; give more --bytes")
        for copy in copies:
            copy.wait(COPY_S)
    ratio = statistics.median(ratios)
    name = "matrix product beside staging, over alone"
    return [Figure(name, ratio, "", f"<= {GEMM_BAR}", ratio <= GEMM_BAR, tuple(ratios))]


def delay_figures(num_samples: int = 20) -> list[Figure]:
    """Error of a delay of each length, median, by both timers."""
    from lanterne.kernels.cuda.spin import TIMERS, measure_delay

    figures = []
    for timer in TIMERS:
        for duration_s in DELAYS_S:
            samples = tuple(measure_delay(duration_s, num_samples, timer))
            error_s = statistics.median(abs(sample - duration_s) for sample in samples)
            allowed_s = max(DELAY_RELATIVE_BAR * duration_s, DELAY_ABSOLUTE_BAR_S)
            name = f"error of a delay of {format_time(duration_s)} by {timer}"
            figures.append(Figure(name, error_s, "s", f"<= {format_time(allowed_s)}", error_s <= allowed_s, samples))
    return figures


def collective_figures(part: str, file: Path, num_ranks: int | None = None) -> list[Figure]:
    """What ranks.py measures as `part` on `num_ranks` ranks over nccl; None: as many as there are GPUs, at least three.

    Of two ranks none is ever late.

    Args:
        file: has what was found so far while the job is under way, and stays where that is killed.

    Raises:
        LanterneError: the job failed, and has found nothing before; it has said why.
    """
    from lanterne.kernels.arrays import require_device
    from lanterne.transport.job.launch import launch
    from lanterne.transport.nccl.binding import SHARED_GPU_ENVIRONMENT

    num_devices = require_device()
    num_ranks = max(3, num_devices) if num_ranks is None else num_ranks
    if not num_ranks:
        return []
    limit_s = float(os.environ.get("LANTERNE_TEST_JOB_S", JOB_S))
    environment = SHARED_GPU_ENVIRONMENT if num_ranks > num_devices else {}
    command = [*own_python(), "-m", "evaluation.gpu.ranks", str(file), part, str(limit_s)]
    file.unlink(missing_ok=True)
    try:
        code = launch(command, num_ranks, "direct", timeout_s=limit_s, env=environment)
        ended = f"ended with {code}" if code else ""
    except LanterneError as error:
        ended = str(error)
    found = json.loads(file.read_text()) if file.exists() else []
    file.unlink(missing_ok=True)
    if ended and not found:
        raise LanterneError(f"gpu: {part}: the job of {num_ranks} ranks over nccl: {ended}; --ranks 0 omits it")
    figures = [Figure(**(record | {"samples": tuple(record["samples"])})) for record in found]
    if ended:
        figures.append(Figure(f"{part}: the job of {num_ranks} ranks over nccl: {ended}", 1, "", "0", False, (1,)))
    return figures


def _ratio_figure(name: str, ratios: tuple[float, ...], least: float | None = None) -> Figure:
    """The Figure of how many times better ours is, by sample, and has to be."""
    value = statistics.median(ratios)
    return Figure(name, value, "", "-" if least is None else f">= {least}", least is None or value >= least, ratios)


def _time_s(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
