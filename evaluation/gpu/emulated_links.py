"""How near emulated links on streams come to what was asked of them: messages between two GPUs, there and back.

A message's time is half of a round trip by the device's clock. Bandwidth is the link's in place of the real one's; a
latency adds to what the message takes without it.
Paper: Chen et al. 2025 (CrossPipe), appendix F.2.
"""

import statistics
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from evaluation.gpu.figures import DELAY_ABSOLUTE_BAR_S, DELAY_RELATIVE_BAR
from lanterne.bench.output.units import format_nbytes, format_time
from lanterne.collectives.communicator import Communicator
from lanterne.errors import LanterneError
from lanterne.kernels.cuda import spin as cuda_delay
from lanterne.kernels.staging import wait_for
from lanterne.pipeline.device.device_stage import Device
from lanterne.pipeline.planes.data_plane import DataPlane
from lanterne.pipeline.planes.plane_makers import make_plane
from lanterne.transport.shaped import FREE, Link

NBYTES, TURNS = 4 << 20, 9
HEAD_START_S = 3e-3
LINKS = {"1 ms": Link(1e-3), "1 GB/s": Link(0.0, 1e9), "1 ms and 1 GB/s": Link(1e-3, 1e9)}


def link_figures(
    comm: Communicator, device: Device, slowest: Callable[[float], float], nbytes: int = NBYTES, turns: int = TURNS
) -> Iterator[dict[str, Any]]:
    """Yields the fields of Figures (figures.py), alike on all ranks of `comm`, over nccl; all of them call it.

    Args:
        slowest: a function of a number that gives the largest of all ranks'.

    Raises:
        LanterneError: the bytes did not arrive as they were.
    """
    if comm.world_size < 2:
        return
    with make_plane("streams", comm) as plane:
        plane.stage_on(device)
        _load(device)

        def message_s(link: Link) -> list[float]:
            for pair in ((0, 1), (1, 0)):
                plane.set_link(*pair, link)
            return [slowest(_turn_s(comm, device, plane, nbytes)) for _ in range(turns + 1)][1:]

        free_s = statistics.median(message_s(FREE))
        for name, link in LINKS.items():
            asked_s = link.latency_s + (link.occupied_s(nbytes) or free_s)
            samples = message_s(link)
            error_s = statistics.median(abs(sample - asked_s) for sample in samples)
            allowed_s = max(DELAY_RELATIVE_BAR * asked_s, DELAY_ABSOLUTE_BAR_S)
            shared = comm.transport.shares_devices
            yield {
                "name": f"error of {format_nbytes(nbytes)} over an emulated link of {name}",
                "value": error_s,
                "unit": "s",
                # Ranks that share a GPU wait for each other's turn.
                "bar": "-" if shared else f"<= {format_time(allowed_s)}",
                "ok": shared or error_s <= allowed_s,
                "samples": samples,
            }


def _load(device: Device) -> None:
    """Launch what is launched beside messages: a first launch may wait for all streams."""
    cuda_delay.delay(0.0, device.runtime.current_stream())
    array = device.xp.empty((2,), np.uint8)
    array[...] = 7
    array[...] = array + 1
    if not bool((array == 8).all()):
        raise LanterneError("links: the device does not add")


def _turn_s(comm: Communicator, device: Device, plane: DataPlane, nbytes: int) -> float:
    """Seconds that a message takes from rank 0 to 1, or back; 0 on other ranks."""
    comm.barrier()
    if comm.rank > 1:
        return 0.0
    shape, dtype, peer, runtime = (nbytes,), np.dtype(np.uint8), 1 - comm.rank, device.runtime
    receive, out = plane.receive(shape, dtype, peer), plane.lend(shape, dtype, peer)
    computing = runtime.current_stream()
    out[...] = 7
    # Until all is queued: else the CPU's time would count too.
    cuda_delay.delay(HEAD_START_S, computing)
    start = runtime.record(computing, timed=True)
    if comm.rank == 0:
        plane.send(out, peer)
        back = receive.wait()
    else:
        back = receive.wait()
        out[...] = back + 1
        plane.send(out, peer)
    stop = runtime.record(computing, timed=True)
    plane.finish()
    wait_for(lambda: runtime.is_done(stop), "a message there and back", comm.timeout_s)
    right = bool((back == (7 if comm.rank else 8)).all())
    plane.release(back)
    if not right:
        raise LanterneError("links: the bytes did not arrive as they were")
    return runtime.elapsed_s(start, stop) / 2 if comm.rank == 0 else 0.0
