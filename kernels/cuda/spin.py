"""Delays on GPU streams: calibrated spin kernels, and emulated link latency and bandwidth.

A spin kernel is one thread. `StreamShaper` makes a stream's transfers behave like those of a slow or far link, by the
method of CrossPipe (appendix F): bandwidth is a kernel that keeps the communication stream busy, latency one that holds
the consumer back. Differs: times are stamped by kernels in device memory, so the host never synchronises, and the time
that the real transfer took counts towards the emulated one instead of being added to it.
Paper: CrossPipe, section 6.4 and appendix F.1.
"""

import contextlib
import functools
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lanterne.errors import InputError, one_of
from lanterne.kernels.arrays import Event, Stream, import_cupy, on_stream, require_device
from lanterne.kernels.cuda.compile import raw_kernel

if TYPE_CHECKING:
    from lanterne.kernels.cuda.runtime import CudaRuntime

TIMERS = ("globaltimer", "clock64")
# Longer spins are cut into kernels of this length, so that none meets a watchdog.
MAX_SPIN_NS = 1_000_000_000
MAX_TICK_NS = 2_000
# Those that wait at once: 4 a message and direction, of thousands of messages.
NUM_SLOTS = 1 << 16
HEAD_START_S, CLOCK_RISE_S = 1e-3, 0.1
OPTIONS = ("-std=c++17",)

SOURCE = r"""
typedef unsigned long long Time;

static __device__ __forceinline__ Time now_ns() {
    Time now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now) :: "memory");
    return now;
}

extern "C" __global__ void spin_globaltimer(Time duration_ns) {
    const Time start = now_ns();
    while (now_ns() - start < duration_ns) __nanosleep(20);
}

extern "C" __global__ void spin_clock64(long long cycles) {
    const long long start = clock64();
    while (clock64() - start < cycles) {}
}

extern "C" __global__ void stamp(Time* slot) { *slot = now_ns(); }

extern "C" __global__ void spin_until(const Time* slot, Time duration_ns) {
    const Time start = *(const volatile Time*)slot;
    while (now_ns() < start + duration_ns) __nanosleep(20);
}

extern "C" __global__ void measure_clock64(long long cycles, Time* slot) {
    const Time start_ns = now_ns();
    const long long start = clock64();
    while (clock64() - start < cycles) {}
    *slot = now_ns() - start_ns;
}

extern "C" __global__ void measure_tick(int num_ticks, Time* slot) {
    const Time start = now_ns();
    Time last = start;
    for (int i = 0; i < num_ticks; ++i) {
        Time next;
        do next = now_ns(); while (next == last);
        last = next;
    }
    *slot = (last - start) / num_ticks;
}
"""


@functools.cache
def _kernel(name: str) -> Callable[..., None]:
    require_device()
    return raw_kernel(SOURCE, name, OPTIONS)


def _launch(name: str, arguments: tuple[object, ...], stream: Stream) -> None:
    _kernel(name)((1,), (1,), arguments, stream=stream)


@dataclass(frozen=True)
class Calibration:
    """What a spin on one device takes: `overhead_s` of an empty kernel, `clock_hz` of clock64 while spinning.

    `tick_ns` is the step of the global timer: tens of nanoseconds to a microsecond, a thousand times as much on some
    devices.
    """

    overhead_s: float
    clock_hz: float
    tick_ns: float

    @property
    def timer(self) -> str:
        """The timer to use: the global one unless its steps are too coarse."""
        return "globaltimer" if self.tick_ns <= MAX_TICK_NS else "clock64"

    def spin_ns(self, duration_s: float) -> int:
        """Nanoseconds to spin so that the stream is held up by `duration_s`."""
        return max(0, round((duration_s - self.overhead_s) * 1e9))


@functools.cache
def calibrate(device_id: int | None = None, num_samples: int = 21) -> Calibration:
    """Measure the Calibration of a device (default: the current one); medians of `num_samples` spins."""
    require_device()
    cupy = import_cupy()
    with cupy.cuda.Device(device_id):
        stream = cupy.cuda.Stream(non_blocking=True)
        slot = cupy.zeros(1, cupy.uint64)
        cupy.cuda.Device().synchronize()
        cycles = 2_000_000
        elapsed_ns: list[int] = []
        empty_s: list[float] = []
        ticks_ns: list[int] = []
        # A device that was idle takes tens of milliseconds to raise its clock; delays by cycles would come out short.
        _launch("spin_globaltimer", (round(CLOCK_RISE_S * 1e9),), stream)
        # Loaded now, not at the first delay.
        _launch("spin_clock64", (0,), stream)
        for _ in range(num_samples):
            _launch("measure_clock64", (cycles, slot.data.ptr), stream)
            elapsed_ns.append(int(slot.get(stream=stream)[0]))
            _launch("measure_tick", (np.int32(100), slot.data.ptr), stream)
            ticks_ns.append(int(slot.get(stream=stream)[0]))
            empty_s.append(elapsed_s(stream, lambda: _launch("spin_globaltimer", (0,), stream)))
    return Calibration(
        overhead_s=statistics.median(empty_s),
        clock_hz=cycles / statistics.median(elapsed_ns) * 1e9,
        tick_ns=statistics.median(ticks_ns),
    )


def elapsed_s(stream: Stream, call: Callable[[], object]) -> float:
    """Seconds of the device in what `call()` queues on `stream`, by CUDA events.

    The stream is kept busy while the CPU queues it, at most HEAD_START_S, or the CPU's time would count too.
    """
    cupy = import_cupy()
    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    _launch("spin_globaltimer", (round(HEAD_START_S * 1e9),), stream)
    start.record(stream)
    call()
    stop.record(stream)
    stop.synchronize()
    return cupy.cuda.get_elapsed_time(start, stop) * 1e-3


def delay(duration_s: float, stream: Stream = None, timer: str | None = None) -> None:
    """Queue a kernel that holds `stream` (default: the current one) up for `duration_s` seconds; returns at once.

    Args:
        timer: "globaltimer" (nanoseconds, whatever the clock rate), "clock64" (cycles at the calibrated rate, which
            drifts with it), or None for the better one on this device.

    Raises:
        InputError: a negative or infinite duration, or no such timer.
    """
    if not 0 <= duration_s < float("inf"):
        raise InputError(f"delay: got {duration_s} s, expected a finite time of at least 0")
    if timer not in (None, *TIMERS):
        raise InputError(f"timer: {one_of(timer, TIMERS)}")
    stream = stream or import_cupy().cuda.get_current_stream()
    calibration = calibrate(import_cupy().cuda.Device().id)
    timer = timer or calibration.timer
    for spin_ns in spin_parts_ns(calibration.spin_ns(duration_s)):
        amount = spin_ns if timer == "globaltimer" else round(spin_ns * 1e-9 * calibration.clock_hz)
        _launch(f"spin_{timer}", (amount,), stream)


def spin_parts_ns(duration_ns: int) -> list[int]:
    """`duration_ns` in parts of at most MAX_SPIN_NS."""
    whole, rest = divmod(duration_ns, MAX_SPIN_NS)
    return [MAX_SPIN_NS] * whole + ([rest] if rest else [])


def measure_delay(duration_s: float, num_samples: int = 20, timer: str | None = None) -> list[float]:
    """Seconds that a stream was held up by `delay(duration_s)`, by CUDA events: one value per sample."""
    stream = import_cupy().cuda.Stream(non_blocking=True)
    # The first launch compiles.
    delay(1e-3, stream, timer)
    return [elapsed_s(stream, lambda: delay(duration_s, stream, timer)) for _ in range(num_samples)]


class SpinKernels:
    """The device's part of a StreamShaper: time stamps in device memory, kernels that write them and spin from them.

    The slots are used in turn: a stamp is good for the next NUM_SLOTS - 1 of them.
    """

    def __init__(self) -> None:
        require_device()
        cupy = import_cupy()
        self._next = 0
        stream = cupy.cuda.Stream(non_blocking=True)
        # Not zeroed, and of a stream of its own: work on another, such as what used the memory before, is unordered
        # with the stamps.
        with on_stream(cupy, stream):
            self._slots = cupy.empty(NUM_SLOTS, cupy.uint64)
        # A first launch loads the kernel, which may wait for all streams.
        slot = self.new_slot()
        self.stamp(slot, stream)
        self.spin_until(slot, 0.0, stream)
        stream.synchronize()

    def new_slot(self) -> int:
        """The address of a slot."""
        slot: int = self._slots.data.ptr + 8 * (self._next % NUM_SLOTS)
        self._next += 1
        return slot

    def stamp(self, slot: int, stream: Stream) -> None:
        """Note the time in `slot` once `stream` gets here."""
        _launch("stamp", (slot,), stream)

    def spin_until(self, slot: int, duration_s: float, stream: Stream) -> None:
        """Hold `stream` back until `duration_s` after the time in `slot`; not at all if that has passed."""
        _launch("spin_until", (slot, round(duration_s * 1e9)), stream)


@dataclass(frozen=True)
class ShapedTransfer:
    """A shaped transfer: `event` is done when it is, `slot` holds the time at which it was; None without a latency."""

    event: Event
    slot: int | None


class StreamShaper:
    """Emulates a link of `latency_s` and `bandwidth_bytes_per_s` (None: as it is) on the streams of one device.

    Args:
        spins: None for its own.

    Raises:
        InputError: a negative latency, or a bandwidth that is not positive.
    """

    def __init__(
        self,
        runtime: "CudaRuntime",
        latency_s: float = 0.0,
        bandwidth_bytes_per_s: float | None = None,
        spins: SpinKernels | None = None,
    ):
        if not 0 <= latency_s < float("inf"):
            raise InputError(f"StreamShaper: got a latency of {latency_s} s, expected a finite time of at least 0")
        if bandwidth_bytes_per_s is not None and not bandwidth_bytes_per_s > 0:
            raise InputError(f"StreamShaper: got a bandwidth of {bandwidth_bytes_per_s} B/s, expected more than 0")
        self.latency_s = latency_s
        self.bandwidth_bytes_per_s = bandwidth_bytes_per_s
        self._runtime = runtime
        # None where nothing is shaped.
        self._spins: Any = spins or (SpinKernels() if latency_s or bandwidth_bytes_per_s is not None else None)

    @contextlib.contextmanager
    def transfer(self, nbytes: int, stream: Stream) -> Iterator[list[ShapedTransfer]]:
        """Run the body, which queues a transfer of `nbytes` on `stream`: busy for nbytes / bandwidth in all.

        Both sides do this, and their streams get here together: a receiver that is early would else count its waiting
        for the sender as transfer. Yields a list that holds the ShapedTransfer afterwards.
        """
        done: list[ShapedTransfer] = []
        bandwidth = self.bandwidth_bytes_per_s
        start = None if bandwidth is None else self._stamped(stream)
        yield done
        if bandwidth is not None:
            self._spins.spin_until(start, nbytes / bandwidth, stream)
        slot = self._stamped(stream) if self.latency_s else None
        done.append(ShapedTransfer(self._runtime.record(stream), slot))

    def _stamped(self, stream: Stream) -> int:
        slot: int = self._spins.new_slot()
        self._spins.stamp(slot, stream)
        return slot

    def hold(self, transfer: ShapedTransfer, stream: Stream) -> None:
        """Hold `stream` back until the transfer is done and `latency_s` has passed since; the receiving side does this.

        What the stream computed in the meantime counts: a message that is old enough is not delayed again.
        """
        self._runtime.wait_event(transfer.event, stream)
        if self.latency_s:
            self._spins.spin_until(transfer.slot, self.latency_s, stream)
