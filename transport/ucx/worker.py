"""UCX as lanterne wants it: the library loaded, its settings chosen, one worker made, and what ucxx lacks: a flush.

Settings, each with its reason (measured with ucxx 0.52, UCX 1.21); a UCX_... variable of the user's always wins:
- POSIX_, SYSV_ERROR_HANDLING and CMA_MEMORY_INVALIDATE: without them UCX leaves shared memory aside as soon as an
  endpoint handles errors (64 MiB at 1 instead of 12 GB/s), and one that does not handle them aborts this process when
  a peer dies in the middle of a message. With them both are had: full speed, and a request that fails.
- KEEPALIVE_INTERVAL: how often UCX looks whether a peer that shares memory still lives (20 s by default). Off where
  there are connections: UCX's probe to a peer that has closed makes the kernel drop what that peer sent last.
  TCP_KEEP... are the kernel's own probes, which are safe: a link that goes down is noticed after 4 s instead of never.
- TCP_TX_SEG_SIZE: at 64K, the largest that the receiving side's default admits, UCX sends without copying; 8K, the
  default, has a third of the bandwidth on loopback.
- TLS: shared memory alone where all ranks share a host: no port is open to anybody. ^tcp between hosts that all have
  RDMA: whoever reaches a port of UCX's TCP layer can write this process's memory. ^sm for a rank that shares its host
  with none: in an emulated cluster UCX would find shared memory all the same and go past the emulated links.
RNDV_SCHEME stays as it is. get_zcopy, known as a cure of half-duplex TCP, turns rendezvous off there: posting a receive
then no longer paces its sender. Two connections for each pair cure it and keep the pacing; see over_ucx.py.
"""

import ctypes
import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from lanterne.errors import InputError, Unavailable
from lanterne.transport.machine import THIS_MACHINE
from lanterne.transport.wire import LOST_MS, keepalive

UCXX_VERSION = "0.52"
INSTALL = f"install it with: pip install ucxx-cu13=={UCXX_VERSION}.* (no GPU needed; CUDA 12: ucxx-cu12), or use ./run"
# Whatever fails raises: what UCX prints beside it, when a peer has died for instance, would only bury that one line.
QUIET = {"UCX_LOG_LEVEL": "fatal", "UCXX_LOG_LEVEL": "fatal", "UCX_WARN_UNUSED_ENV_VARS": "n"}
# Variables that ucxx sets when it is loaded, where a user has not. Where there is a GPU it sets another by NVML.
UCXX_SETS = {
    "UCX_MEMTYPE_CACHE": "n",
    "UCX_RNDV_THRESH": "8192",
    "UCX_RNDV_FRAG_MEM_TYPE": "cuda",
    "UCX_MAX_RNDV_RAILS": "1",
}
GPU_DRIVERS = ("/proc/driver/nvidia", "/dev/dxg")
# UCX passes over what is not there. "sm" would be sysv, too, which moves as posix does: 2 MB a rank for nothing.
ONE_HOST_TLS = "posix,cma,xpmem,knem,self,cuda_copy,cuda_ipc"
OWN_TLS = ("^tcp", "^posix", "^tcp,posix")
_PROBES, _EVERY_S = keepalive(LOST_MS)
SETTINGS = {
    "POSIX_ERROR_HANDLING": "y",
    "SYSV_ERROR_HANDLING": "y",
    "CMA_MEMORY_INVALIDATE": "y",
    "KEEPALIVE_INTERVAL": "inf",
    "TCP_KEEPIDLE": f"{_EVERY_S}s",
    "TCP_KEEPINTVL": f"{_EVERY_S}s",
    "TCP_KEEPCNT": f"{_PROBES}",
    "TCP_TX_SEG_SIZE": "64K",
}

_loading = threading.Lock()


def load_ucxx() -> tuple[Any, Callable[[object], Any]]:
    """`ucxx._lib.libucxx`, UCXX's core API, and its Array, the view of memory that it takes.

    Raises:
        Unavailable: it is missing, cannot be loaded, or has another version than the one this was written for: its core
            API is not a stable one. UCX-Py (`ucp`), archived since 2025, is no substitute.
    """
    # Read when the library loads; our own environment only, and the user's values win.
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        with _loading, one_ucx():
            is_whole = "ucxx" in sys.modules or any(map(os.path.exists, GPU_DRIVERS))
            version, libucxx, array = _whole_ucxx() if is_whole else _core_of_ucxx()
    except (ImportError, OSError) as error:
        raise Unavailable(f"ucx: cannot load ucxx ({error}); {INSTALL}") from error
    if not version.startswith(f"{UCXX_VERSION}."):
        raise Unavailable(f"ucx: got ucxx {version}, expected {UCXX_VERSION}; {INSTALL}")
    return libucxx, array


def _whole_ucxx() -> tuple[str, Any, Any]:
    import ucxx

    return ucxx.__version__, *_core()


def _core_of_ucxx() -> tuple[str, Any, Any]:
    """What load_ucxx needs of ucxx, without what `import ucxx` loads besides: 14 MB of each rank, and 0.3 s.

    Whoever imports ucxx later gets all of it, but for the attribute `ucxx._lib`, which has to be imported by its name.
    """
    spec = importlib.util.find_spec("ucxx")
    if spec is None:
        raise ImportError("No module named 'ucxx'")
    for name, value in UCXX_SETS.items():
        os.environ.setdefault(name, value)
    # Its modules are found in it, but its own code does not run.
    sys.modules["ucxx"] = importlib.util.module_from_spec(spec)
    try:
        # Of a wheel; another installation's libraries are the system's.
        with suppress(ModuleNotFoundError):
            importlib.import_module("libucxx").load_library()
        return importlib.import_module("ucxx._version").__version__, *_core()
    finally:
        del sys.modules["ucxx"]


def _core() -> tuple[Any, Any]:
    from ucxx._lib import libucxx
    from ucxx._lib.arr import Array

    return libucxx, Array


@contextmanager
def one_ucx() -> Iterator[None]:
    """Within it, ucxx is imported over the UCX that this process has already, if it has one.

    The MPICH wheel brings a UCX (1.20, with InfiniBand), and so may any MPI. Of libraries with the same name only the
    first are loaded, so that those of ucxx's own wheel would come out as a mixture of two versions.
    """
    try:
        ctypes.CDLL("libucp.so.0", os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        yield
        return
    modules: dict[str, Any] = sys.modules
    before = {name: modules[name] for name in ("libucx",) if name in modules}
    modules["libucx"] = None  # the package that loads them; ucxx takes what is there when it is absent
    try:
        yield
    finally:
        del modules["libucx"]
        modules.update(before)


def settings(
    hosts: Sequence[str],
    rank: int,
    environment: Mapping[str, str],
    *,
    rdma: bool = False,
    roomy: bool = True,
    interface: str = "",
) -> dict[str, str]:
    """The UCX settings of `rank`, by their names without UCX_; see the module.

    Args:
        hosts: the host identity of every rank.
        environment: the variables whose UCX_... win, but for a UCX_TLS of lanterne's own, which leaves something out
            (job/room.py).
        rdma: every host has it.
        roomy: every rank found room in /dev/shm.
        interface: the one by which other hosts are reached without RDMA; UCX itself would try any that is up.
    """
    chosen = dict(SETTINGS)
    if len(set(hosts)) == 1:
        set_so_far = environment.get("UCX_TLS", "")
        without_posix = not roomy or (set_so_far in OWN_TLS and "posix" in set_so_far)
        tls = ONE_HOST_TLS.replace("posix", "sysv") if without_posix else ONE_HOST_TLS
        chosen |= {"TLS": tls, "KEEPALIVE_INTERVAL": "500ms"}
        if set_so_far in OWN_TLS:
            return _unless_set(chosen, environment) | {"TLS": tls}
    elif left_out := ["tcp"] * rdma + ["sm"] * (hosts.count(hosts[rank]) == 1):
        chosen["TLS"] = "^" + ",".join(left_out)
    if interface and not rdma and len(set(hosts)) > 1:
        chosen["NET_DEVICES"] = interface
    return _unless_set(chosen, environment)


def _unless_set(chosen: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in chosen.items() if f"UCX_{name}" not in environment}


def receiver_paced_nbytes(environment: Mapping[str, str]) -> int | None:
    """The size from which a sender waits for its receive; ucxx sets UCX_RNDV_THRESH to 8192 when it is loaded.

    None where the user's settings leave that open, or turn rendezvous off over TCP.
    """
    if environment.get("UCX_RNDV_SCHEME", "auto") not in ("auto", "am"):
        return None
    threshold = environment.get("UCX_RNDV_THRESH", "8192")
    return int(threshold) if threshold.isascii() and threshold.isdigit() else None


def make_worker(libucxx: Any, options: Mapping[str, str]) -> tuple[Any, Any]:
    """A UCXWorker in blocking progress mode, and its context.

    Raises:
        InputError: UCX refuses the settings, the user's variables included.
    """
    try:
        context = libucxx.UCXContext(options, (libucxx.Feature.TAG, libucxx.Feature.WAKEUP))
        worker = libucxx.UCXWorker(context, enable_delayed_submission=False, enable_python_future=False)
        worker.init_blocking_progress_mode()
    except (libucxx.UCXError, ValueError) as error:
        names = sorted(name for name in os.environ if name.startswith("UCX_") and name not in {*UCXX_SETS, *QUIET})
        theirs = " ".join(f"{name}={os.environ[name]}" for name in names) or "no UCX_... variable set"
        raise InputError(f"ucx: cannot start with {theirs}: {error}; expected settings that UCX takes here") from error
    return context, worker


def flush(worker: Any, deadline: float) -> bool:
    """Return once every message that was sent has left this process's memory, or after `deadline` (THIS_MACHINE's).

    ucxx has no flush, and an endpoint that handles errors drops what it has queued when it is closed; so UCX is called
    directly.

    Returns: True if all of it left.
    """
    ucp = ctypes.CDLL("libucp.so.0")
    ucp.ucp_worker_flush_nbx.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    ucp.ucp_worker_flush_nbx.restype = ctypes.c_void_p
    ucp.ucp_request_check_status.argtypes = ucp.ucp_request_free.argtypes = [ctypes.c_void_p]
    parameters = ctypes.create_string_buffer(256)  # a ucp_request_param_t with no field set
    request = ucp.ucp_worker_flush_nbx(worker.handle, parameters)
    if request is None:
        return True
    if request >= 2**64 - 100:
        return False  # UCS_PTR_IS_ERR: a small negative number
    in_progress = 1
    while (status := ucp.ucp_request_check_status(request)) == in_progress and THIS_MACHINE.now_s() < deadline:
        worker.progress_worker_event(1)
    ucp.ucp_request_free(request)
    return status == 0
