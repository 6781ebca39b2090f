"""CudaRuntime over a stand-in for CuPy: which device is current when, and pinned memory that goes meanwhile."""

import sys
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from lanterne.errors import InputError, TransportError, Unavailable
from lanterne.kernels.cuda import compile as cuda_compile
from lanterne.kernels.cuda import reduce_on_device as cuda_reduce
from lanterne.kernels.cuda import runtime as cuda_runtime
from lanterne.kernels.cuda.runtime import CudaRuntime, own_device, runtime_of


class Status(RuntimeError):
    """An error of CUDA's."""

    def __init__(self, status):
        super().__init__(status)
        self.status = status


class DriverStatus(Exception):
    """An error of the driver's, as launches raise it."""


class Cuda:
    """What of cupy.cuda a CudaRuntime asks; `current` is the current device, `log` what was made or launched on it."""

    def __init__(self, num_devices):
        self.num_devices, self.current, self.log = num_devices, 0, []
        # The stream that the user has made the current one.
        self.users = None
        # The thread's last error, as long as nobody resets it.
        self.last_error = 0
        self.runtime = SimpleNamespace(
            CUDARuntimeError=Status,
            eventQuery=self.query,
            check_status=self.check_status,
            streamWaitEvent=lambda stream, event: self.log.append(("wait", self.current)),
            streamIsCapturing=lambda stream: self.log.append(("captured?", self.current)),
            memcpyAsync=lambda *arguments: self.log.append(("copy", self.current)),
        )
        self.driver = SimpleNamespace(CUDADriverError=DriverStatus)

    def query(self, status):
        self.last_error = status
        return status

    def check_status(self, status):
        self.last_error = 0
        if status:
            raise Status(status)

    def Device(self, device_id=None):
        @contextmanager
        def device():
            before, self.current = self.current, device_id
            try:
                yield
            finally:
                self.current = before

        class Again:
            id = self.current if device_id is None else device_id

            def __enter__(self):
                self.entered = device()
                self.entered.__enter__()

            def __exit__(self, *_):
                self.entered.__exit__(None, None, None)

            def use(again):
                self.current = device_id

        return Again()

    def get_current_stream(self, device_id=None):
        self.log.append(("current stream", device_id))
        return self.users or self.Stream(True)

    class Stream:
        """A stream of device `device_id`; once it is used, memory is allocated on it."""

        device_id, ptr = -1, 7

        def __init__(self, non_blocking):
            self.log = []

        def use(self):
            self.log.append("used")

        def synchronize(self):
            self.log.append("synchronized")

    def Event(self, disable_timing):
        self.log.append(("event", self.current))
        return SimpleNamespace(ptr=0, record=lambda stream: self.log.append(("record", self.current)))


@pytest.fixture
def make_runtime(monkeypatch):
    """A function (device, number of devices) -> (CudaRuntime, Cuda)."""

    def make(device_id, num_devices):
        cuda = Cuda(num_devices)
        driver = SimpleNamespace(
            CUstreamCaptureMode=SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED="relaxed"),
            cuThreadExchangeStreamCaptureMode=lambda mode: cuda.log.append((mode, cuda.current)) or (0, "global"),
        )
        monkeypatch.setitem(sys.modules, "cuda.bindings.driver", driver)
        monkeypatch.setattr(cuda_runtime, "require_device", lambda: num_devices)
        monkeypatch.setattr(cuda_runtime, "import_cupy", lambda: SimpleNamespace(cuda=cuda))
        kernel = lambda *arguments, stream: cuda.log.append(("launch", cuda.current))  # noqa: E731
        monkeypatch.setattr(cuda_reduce, "prepare", lambda *arguments: kernel)
        monkeypatch.setattr(cuda_reduce, "prepare_divide", lambda *arguments: kernel)
        runtime = CudaRuntime(device_id)
        cuda.log.clear()
        return runtime, cuda

    return make


@pytest.mark.parametrize(("device_id", "num_devices"), [(0, 1), (0, 2), (1, 2)])
def test_everything_is_made_and_launched_on_its_device(make_runtime, device_id, num_devices):
    """CuPy takes the current device for both, whatever the stream: on another one a launch is an invalid handle."""
    runtime, cuda = make_runtime(device_id, num_devices)
    stream = runtime.as_stream(None)
    # A default stream is that of the current device.
    runtime.wait_event(runtime.record(stream), stream)
    runtime.copy(0, 0, 1, stream)
    runtime.prepare_fold("sum", "float32", 2)(1, 16, 16, 32, stream=stream)
    runtime.prepare_divide("float32")(1, 16, 16, 2.0, stream=stream)
    runtime.adopt_thread()
    what = ["current stream", "captured?", "event", "record", "wait", "copy", "launch", "launch", "relaxed"]
    assert cuda.log == [(name, device_id) for name in what]
    assert cuda.current == device_id


@pytest.mark.parametrize(
    ("place", "named", "expected"),
    [(0, None, 0), (4, None, 1), (4, "2", 2), (0, "3", None), (0, "-1", None), (0, "1.5", None), (0, "", None)],
)
def test_a_rank_has_a_device_of_its_own(make_runtime, monkeypatch, place, named, expected):
    make_runtime(0, 3)
    monkeypatch.setattr(cuda_runtime, "CudaRuntime", lambda number: SimpleNamespace(device=used(number), number=number))
    taken = []

    def used(number):
        return SimpleNamespace(use=lambda: taken.append(number))

    if named is None:
        monkeypatch.delenv("LANTERNE_DEVICE", raising=False)
    else:
        monkeypatch.setenv("LANTERNE_DEVICE", named)
    if expected is None:
        with pytest.raises(InputError, match=f"LANTERNE_DEVICE: got '{named}', expected a number from 0 to 2"):
            own_device(place)
    else:
        assert own_device(place).number == expected and taken == [expected]


class OutOfMemoryError(Exception):
    """CuPy's."""


@pytest.mark.parametrize("refusal", [OutOfMemoryError(), Status(2)], ids=["the pool's", "another allocator's"])
def test_no_room_on_the_device_is_named(make_runtime, refusal):
    runtime, cuda = make_runtime(0, 1)

    def refuse(nbytes):
        raise refusal

    cuda.alloc, cuda.memory = refuse, SimpleNamespace(OutOfMemoryError=OutOfMemoryError)
    cuda.runtime.memGetInfo = lambda: (5, 7)
    message = (
        r"scratch: device 0 has no room for 9 bytes \(5 of 7 free\); use smaller arrays or a smaller segment_nbytes"
    )
    with pytest.raises(Unavailable, match=message):
        runtime.empty(9)
    if isinstance(refusal, Status):
        refusal.status = 700
        with pytest.raises(TransportError, match="device 0: 2"):
            runtime.empty(9)


def test_memory_is_there_for_all_streams(make_runtime):
    """An allocator may give it in the order of a stream: that on which nothing runs, and then it is waited for."""
    runtime, cuda = make_runtime(0, 1)
    log = runtime._memory.stream.log
    cuda.memory = SimpleNamespace(OutOfMemoryError=OutOfMemoryError)
    cuda.alloc = lambda nbytes: log.append("allocated") or SimpleNamespace(ptr=4096)
    view = runtime.empty(9)
    assert (view.address, view.nbytes) == (4096, 9)
    assert log == ["used", "allocated", "synchronized"]


def test_the_users_stream_is_the_current_one_again(make_runtime):
    """`with stream` would not do: what `use` had set is forgotten at its end."""
    runtime, cuda = make_runtime(0, 1)
    cuda.memory = SimpleNamespace(OutOfMemoryError=OutOfMemoryError)
    cuda.users, order = cuda.Stream(True), []
    runtime._memory.stream.log = cuda.users.log = order
    cuda.users.use = lambda: order.append("used again")
    cuda.alloc = lambda nbytes: order.append("allocated") or SimpleNamespace(ptr=4096)
    runtime.empty(9)
    assert order == ["used", "allocated", "synchronized", "used again"]


@pytest.mark.parametrize("error", [Status(400), DriverStatus("CUDA_ERROR_INVALID_HANDLE")])
def test_what_cuda_refuses_is_an_error_of_ours(make_runtime, error):
    """One of CuPy's would end no communicator, and the other ranks would hear of it late."""
    runtime, cuda = make_runtime(0, 2)

    def refuse(*arguments, **options):
        raise error

    prepared = runtime.prepare_fold("sum", "float32", 2)
    stream = SimpleNamespace(ptr=7, begin_capture=refuse, end_capture=refuse)
    cuda.runtime.streamWaitEvent = cuda.runtime.memcpyAsync = cuda.runtime.pointerGetAttributes = cuda.Event = refuse
    cuda.get_elapsed_time = cuda.runtime.hostUnregister = refuse
    runtime._memory.pinned[4096] = 1, 4096
    for verb in (
        lambda: runtime.record(stream),
        lambda: runtime.wait_event(SimpleNamespace(ptr=0), stream),
        lambda: runtime.copy(0, 0, 1, stream),
        lambda: runtime.begin_capture(stream),
        lambda: runtime.end_capture(stream),
        lambda: runtime.launch(SimpleNamespace(launch=refuse), stream),
        lambda: runtime.elapsed_s(None, None),
        lambda: runtime.device_of(4096),
        lambda: runtime.unpin(4096),
    ):
        with pytest.raises(TransportError, match=f"device 0: {error}"):
            verb()
        assert cuda.current == 0, verb
    assert prepared is not None


def test_a_device_that_does_not_give_way(make_runtime, monkeypatch):
    runtime, _cuda = make_runtime(1, 2)

    def refuse(*exception):
        raise Status(700)

    monkeypatch.setattr(type(runtime.device), "__exit__", refuse)
    with pytest.raises(TransportError, match="device 1: 700"):
        runtime.copy(0, 0, 1, SimpleNamespace(ptr=7))


def test_a_launch_that_is_refused(make_runtime, monkeypatch):
    runtime, _ = make_runtime(0, 1)

    def refuse(*arguments, stream):
        raise DriverStatus("CUDA_ERROR_ILLEGAL_ADDRESS")

    monkeypatch.setattr(cuda_reduce, "prepare", lambda *arguments: refuse)
    with pytest.raises(TransportError, match="device 0: CUDA_ERROR_ILLEGAL_ADDRESS"):
        runtime.prepare_fold("sum", "float32", 2)(1, 16, 16, 32, stream=None)


def test_a_failed_device_that_cannot_even_become_the_current_one_is_named(make_runtime):
    runtime, _cuda = make_runtime(1, 2)

    class Refusing:
        def __enter__(self):
            raise Status(700)

    runtime._here._device = Refusing()
    with pytest.raises(TransportError, match="device 1: 700"):
        runtime.new_stream()


def test_a_thread_of_a_device_that_has_failed(make_runtime):
    """What it is for goes on: to free what it can, or to tell of the failure."""
    runtime, _ = make_runtime(0, 1)

    def refuse():
        raise Status(700)

    runtime.device.use = refuse
    runtime.adopt_thread()


@pytest.mark.parametrize(("address", "expected"), [(4096, 1), (0, 2), (1, None)])
def test_the_device_of_the_first_array(make_runtime, address, expected):
    """No other device is touched: each process that shows itself to one takes memory there."""
    _, cuda = make_runtime(0, 3)
    cuda.current = 2
    attributes = {4096: SimpleNamespace(type=2, device=1), 1: SimpleNamespace(type=0, device=-2)}
    cuda.runtime.pointerGetAttributes = attributes.get
    entered, make = [], cuda.Device
    cuda.Device = lambda *number: entered.extend(number) or make(*number)
    if expected is None:
        with pytest.raises(InputError, match=r"array: got an address on the host .0x1., expected device memory"):
            runtime_of(address)
    else:
        assert runtime_of(address).device_id == expected
    assert entered == [expected] * (expected is not None)


def test_a_buffer_that_goes_during_a_look_up(make_runtime):
    """The collector may unpin a buffer between any two steps."""
    runtime, _ = make_runtime(0, 1)

    class Going(int):
        def __le__(self, other):
            runtime._memory.pinned.pop(4096, None)
            return int(self) <= other

    runtime._memory.pinned = {Going(0): (64, 1 << 20), 4096: (64, 2 << 20), 8192: (64, 3 << 20)}
    assert runtime.device_address(8200) == (3 << 20) + 8
    with pytest.raises(InputError, match="expected an address in pinned memory"):
        runtime.device_address(4096 + 64)


@pytest.mark.parametrize(("status", "expected"), [(0, True), (600, False)])
def test_done_or_not_yet(make_runtime, status, expected):
    runtime, cuda = make_runtime(0, 1)
    assert runtime.is_done(SimpleNamespace(ptr=status)) is expected
    assert cuda.last_error == 0


class AnyStream(SimpleNamespace):
    """A stream of CuPy's; `ptr` is what CUDA answers when it is asked whether it is captured, or raises."""


@pytest.mark.parametrize(
    ("device_id", "answer", "error", "message"),
    [
        (1, False, InputError, "stream: got one of device 1, expected device 0"),
        (0, True, InputError, "stream: got one that is being captured, expected one that runs; Communicator.capture"),
        (0, RuntimeError("invalidated"), InputError, "being captured"),
        (-1, Status(906), InputError, "being captured"),
        (-1, 400, InputError, "stream: got 0x190, which CUDA does not know on device 0"),
        (0, Status(700), TransportError, "device 0: 700"),
    ],
)
def test_streams_that_a_call_cannot_use(make_runtime, device_id, answer, error, message):
    runtime, cuda = make_runtime(0, 2)
    cuda.Stream = AnyStream

    def is_capturing(answer):
        if answer == 400:
            raise Status(answer)
        if isinstance(answer, Exception):
            raise answer
        return answer

    cuda.runtime.streamIsCapturing = is_capturing
    stream = AnyStream(ptr=answer, device_id=device_id)
    with pytest.raises(error, match=message):
        runtime.as_stream(stream)
    stream.device_id, stream.ptr = 0, False
    assert runtime.as_stream(stream) is stream
    assert runtime.as_stream(0).ptr == 0


def test_no_pinned_memory_is_named(make_runtime):
    runtime, cuda = make_runtime(0, 1)

    def refuse(*arguments):
        raise Status("cudaErrorMemoryAllocation: out of memory")

    cuda.runtime.hostRegister = refuse
    with pytest.raises(Unavailable, match=r"cannot pin 4096 bytes .cudaErrorMemoryAllocation"):
        runtime.pin(0, 4096)
    assert not runtime._memory.pinned


def test_failed_work_is_an_error(make_runtime):
    runtime, _ = make_runtime(0, 1)
    with pytest.raises(TransportError, match="device 0: 700; what was queued on it has failed"):
        runtime.is_done(SimpleNamespace(ptr=700))


@pytest.mark.parametrize(
    ("prepare", "given", "expected"),
    [
        (cuda_reduce.prepare, ("sum", "float32", 3, "cuda-c"), [0, bytes(24)]),
        (cuda_reduce.prepare_divide, ("float32",), [0, 0, 1.0]),
    ],
)
def test_a_prepared_kernel_is_loaded(monkeypatch, prepare, given, expected):
    """Its first launch, which may wait for all streams, is made at once, and touches no memory."""
    launches = []

    def raw_kernel(source, name, options):
        return lambda grid, block, arguments, stream: launches.append((grid, arguments, stream))

    device = SimpleNamespace(id=0, attributes={"MultiProcessorCount": 4})
    cuda = SimpleNamespace(Device=lambda *_: device, Stream=lambda non_blocking: "own stream")
    monkeypatch.setattr(cuda_reduce, "import_cupy", lambda: SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(cuda_reduce, "raw_kernel", raw_kernel)
    monkeypatch.setattr(cuda_reduce, "require_device", lambda: 1)
    for cached in (cuda_reduce._fold_kernel, cuda_reduce._kernel_with_number):
        cached.cache_clear()
    prepare(*given)
    for cached in (cuda_reduce._fold_kernel, cuda_reduce._kernel_with_number):
        cached.cache_clear()
    ((grid, (count, head, *arguments), stream),) = launches
    assert (grid, count, head, stream) == ((1,), 0, 0, "own stream")
    # The addresses of the inputs are one value, a structure.
    assert [argument.tobytes() if isinstance(argument, np.ndarray) else argument for argument in arguments] == expected


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA_ERROR_UNSUPPORTED_PTX_VERSION: the provided PTX was compiled with another toolchain"),
        ImportError("libnvrtc.so.13: cannot open shared object file"),
        RuntimeError(""),
    ],
)
def test_a_cuda_that_does_not_go_with_the_driver_is_named(monkeypatch, error):
    class RawKernel:
        def __init__(self, source, name, options):
            pass

        def compile(self):
            raise error

    monkeypatch.setattr(cuda_compile, "import_cupy", lambda: SimpleNamespace(RawKernel=RawKernel))
    with pytest.raises(
        Unavailable, match=f"cannot compile or load fold .{type(error).__name__}.*install lanterne.cuda12"
    ):
        cuda_compile.raw_kernel("source", "fold", ())
