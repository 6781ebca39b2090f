"""Device "lag" of lag.cpp: build it for the torch that is here, register it with torch and with lanterne.torch.

`use()` comes before anything that makes a tensor on it. Streams wait for tasks alone: `late_stream` makes one late, and
lanterne's calls hold their streams by LagGate.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sysconfig
import threading
import types
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("lag.cpp")
KIND = "lag"
BUILD_S = 280


def library():
    """Return the compiled lag.cpp, which is kept by its text and torch's version."""
    version = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "lanterne-tests"
    folder.mkdir(parents=True, exist_ok=True)
    built = folder / f"lag-{version}.so"
    with open(folder / f"lag-{version}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            _compile(built)
    return built


def _compile(built):
    here = Path(torch.__file__).parent
    includes = [here / "include", here / "include/torch/csrc/api/include", sysconfig.get_path("include")]
    part = built.with_suffix(".part")
    words = ["g++", "-std=c++20", "-O1", "-w", "-fPIC", "-shared", "-DTORCH_EXTENSION_NAME=lag_c"]
    words += [f"-I{folder}" for folder in includes]
    words += [SOURCE, "-o", part, f"-L{here / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10"]
    subprocess.run([*words, f"-Wl,-rpath,{here / 'lib'}"], check=True, timeout=BUILD_S)
    part.rename(built)


def use():
    """Make the device in this process; return the compiled module."""
    torch.utils.rename_privateuse1_backend(KIND)
    spec = importlib.util.spec_from_file_location("lag_c", library())
    lag = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(lag)
    torch._register_device_module(KIND, _module(lag))
    torch.utils.generate_methods_for_privateuse1_backend()

    from lanterne.torch import accelerators

    accelerators.KINDS[KIND] = lambda: LagAccelerator(lag)
    return lag


def _module(lag):
    """Return what torch.cuda is to CUDA."""
    number = int(torch._C._autograd.DeviceType.PrivateUse1)

    def stream_of(stream_id):
        return torch.Stream(stream_id=stream_id, device_index=0, device_type=number)

    @contextlib.contextmanager
    def stream(given):
        before = lag.current() if given is None else lag.set_current(given.stream_id)
        try:
            yield given
        finally:
            lag.set_current(before)

    module = types.ModuleType(f"torch.{KIND}")
    module.__dict__.update(
        is_available=lambda: True,
        is_initialized=lambda: True,
        _is_in_bad_fork=lambda: False,
        device_count=lambda: 1,
        current_device=lambda: 0,
        set_device=lambda _device: None,
        device=lambda _device: contextlib.nullcontext(),
        manual_seed=lambda _seed: None,
        manual_seed_all=lambda _seed: None,
        get_rng_state=lambda _device=None: torch.get_rng_state(),
        set_rng_state=lambda state, _device=None: torch.set_rng_state(state),
        get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
        empty_cache=lambda: None,
        current_stream=lambda _device=None: stream_of(lag.current()),
        default_stream=lambda _device=None: stream_of(0),
        set_stream=lambda given: lag.set_current(given.stream_id),
        stream=stream,
        Stream=lambda device=None, priority=0: torch.Stream(device=torch.device(KIND, 0)),
        Event=lambda **_options: torch.Event(device=torch.device(KIND, 0)),
        synchronize=lambda _device=None: torch.accelerator.synchronize(),
    )
    return module


class LagGate:
    """Tasks of the device, each held until it is released."""

    def __init__(self, lag):
        self._lag = lag

    def hold(self, stream):
        return self._lag.hold(stream.stream_id)

    def open(self, number, stream=None):
        if stream is not None:
            stream.synchronize()
        self._lag.release(number)


class LagAccelerator:
    """What lanterne.torch needs of the device."""

    kind = KIND

    def __init__(self, lag):
        self._lag = lag

    @property
    def module(self):
        return torch.get_device_module(KIND)

    # A backend of torch's for this device, where a test has registered one.
    native = None

    def gate(self, _device):
        return LagGate(self._lag)

    def new_stream(self, _device):
        return torch.Stream(device=torch.device(KIND, 0))

    def adopt_thread(self, _device):
        pass

    def is_capturing(self):
        return False

    def pinned(self, tensor):
        return torch.empty(tensor.shape, dtype=tensor.dtype)

    def all_reduce(self, comm, tensor, op, stream, timeout_s):
        from lanterne.torch.tensor_views import view_of

        stream.synchronize()
        array, dtype = view_of(self._lag.on_host(tensor))
        comm.all_reduce(array, array, op, timeout_s=timeout_s, dtype=dtype)

    def join(self, place, rank, world_size, timeout_s, *, deterministic):
        from lanterne.collectives.jobs import join

        return join(place, rank, world_size, None, timeout_s, deterministic=deterministic)


def late_stream(lag, late_s, stream_id=None):
    """Have the current stream, or another, do nothing for `late_s`; the CPU goes on."""
    number = lag.hold(lag.current() if stream_id is None else stream_id)
    threading.Timer(late_s, lag.release, (number,)).start()
