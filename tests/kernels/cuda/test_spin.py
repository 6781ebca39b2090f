"""GPU delays without a GPU: what is launched, and that shaped streams keep the emulated link's time."""

from types import SimpleNamespace

import pytest
from gpu_compilers import require_compilers
from host_runtime import HostRuntime
from virtual_spins import VirtualSpins

from evaluation.gpu.occupancy import ARCHS, compile_for
from lanterne.errors import InputError
from lanterne.kernels.cuda import spin as cuda_delay
from lanterne.kernels.cuda.spin import MAX_SPIN_NS, Calibration, StreamShaper, delay, spin_parts_ns

TIMEOUT_S = 60


@pytest.fixture
def runtime():
    runtime = HostRuntime()
    yield runtime
    runtime.close()


@pytest.mark.parametrize(
    ("latency_s", "bandwidth", "real_s", "compute_s", "end_s"),
    [
        # An ideal link: the real transfer, then the computation.
        (0.0, None, 1.0, 2.0, 3.0),
        # Bandwidth: 100 bytes at 25 B/s are 4 s, of which the real transfer is a part.
        (0.0, 25.0, 1.0, 2.0, 6.0),
        # A real transfer that is slower than the emulated one is not delayed.
        (0.0, 25.0, 7.0, 2.0, 9.0),
        # Latency: held back until 5 s after the transfer; the computation in between counts.
        (5.0, None, 1.0, 2.0, 6.0),
        (5.0, None, 1.0, 8.0, 9.0),
        (5.0, 25.0, 1.0, 2.0, 9.0),
    ],
)
def test_shaped_transfers(runtime, latency_s, bandwidth, real_s, compute_s, end_s):
    spins = VirtualSpins()
    shaper = StreamShaper(runtime, latency_s, bandwidth, spins)
    communication, compute = runtime.new_stream(), runtime.new_stream()
    with shaper.transfer(100, communication) as done:
        spins.work(real_s, communication)
    (transfer,) = done
    assert transfer.event.wait(TIMEOUT_S)
    spins.work(compute_s, compute)
    shaper.hold(transfer, compute)
    assert runtime.record(compute).wait(TIMEOUT_S)
    assert spins.now_s == end_s


def test_transfers_of_one_stream_queue_up(runtime):
    spins = VirtualSpins()
    shaper = StreamShaper(runtime, 0.0, 10.0, spins)
    stream = runtime.new_stream()
    for _ in range(3):
        with shaper.transfer(20, stream):
            spins.work(0.5, stream)
    assert runtime.record(stream).wait(TIMEOUT_S)
    assert spins.now_s == 6.0


def test_consumers_wait_for_the_transfer_itself(runtime):
    spins = VirtualSpins()
    shaper = StreamShaper(runtime, 0.0, None, spins)
    communication, compute, order = runtime.new_stream(), runtime.new_stream(), []
    with shaper.transfer(1, communication) as done:
        communication.work.put(lambda: order.append("transfer"))
    shaper.hold(done[0], compute)
    compute.work.put(lambda: order.append("compute"))
    assert runtime.record(compute).wait(TIMEOUT_S)
    assert order == ["transfer", "compute"]


@pytest.mark.parametrize(
    ("latency_s", "bandwidth"), [(-1.0, None), (float("inf"), None), (float("nan"), None), (0.0, 0.0), (0.0, -1.0)]
)
def test_links_that_cannot_be(runtime, latency_s, bandwidth):
    with pytest.raises(InputError, match=r"StreamShaper: got a (latency|bandwidth) of"):
        StreamShaper(runtime, latency_s, bandwidth, VirtualSpins())


@pytest.fixture
def launches(monkeypatch):
    """Kernel launches, recorded; the device takes 3 us per kernel and runs at 1 GHz."""
    recorded = []
    monkeypatch.setattr(cuda_delay, "_launch", lambda name, arguments, stream: recorded.append((name, *arguments)))
    monkeypatch.setattr(cuda_delay, "calibrate", lambda device_id: Calibration(3e-6, 1e9, 32.0))
    cuda = SimpleNamespace(Device=lambda: SimpleNamespace(id=0), get_current_stream=lambda: None)
    monkeypatch.setattr(cuda_delay, "import_cupy", lambda: SimpleNamespace(cuda=cuda))
    return recorded


@pytest.mark.parametrize("timer", [None, "globaltimer", "clock64"])
def test_a_delay_is_one_kernel_less_its_overhead(launches, timer):
    delay(1e-3, timer=timer)
    assert launches == [(f"spin_{timer or 'globaltimer'}", 997_000)]


@pytest.mark.parametrize("duration_s", [0.0, 2e-6])
def test_delays_below_the_overhead_of_a_kernel_are_none(launches, duration_s):
    delay(duration_s)
    assert launches == []


@pytest.mark.parametrize(
    ("duration_s", "timer"), [(-1.0, None), (float("inf"), None), (float("nan"), None), (1.0, "rdtsc")]
)
def test_bad_delays(launches, duration_s, timer):
    with pytest.raises(InputError, match=r"delay: got|timer: got 'rdtsc', expected one of globaltimer, clock64"):
        delay(duration_s, timer=timer)


def test_coarse_timers_are_not_used():
    assert Calibration(0.0, 1e9, 1_000_000.0).timer == "clock64"
    assert Calibration(0.0, 1e9, 1000.0).timer == "globaltimer"


@pytest.mark.parametrize("duration_ns", [0, 1, MAX_SPIN_NS - 1, MAX_SPIN_NS, MAX_SPIN_NS + 1, 3 * MAX_SPIN_NS])
def test_long_spins_are_cut(duration_ns):
    parts = spin_parts_ns(duration_ns)
    assert sum(parts) == duration_ns
    assert all(0 < part <= MAX_SPIN_NS for part in parts)


@pytest.mark.filterwarnings("error:NVRTC:RuntimeWarning")
@pytest.mark.parametrize("arch", ARCHS)
def test_spin_kernels_compile(arch):
    require_compilers()
    ptx, code = compile_for(cuda_delay.SOURCE, arch, cuda_delay.OPTIONS)
    for name in ("spin_globaltimer", "spin_clock64", "stamp", "spin_until", "measure_clock64", "measure_tick"):
        assert f".entry {name}(" in ptx, name
    # The timer is read in a loop, not once before it.
    assert ptx.count("%globaltimer") >= 2 * 3
    assert code.startswith(b"\x7fELF")
