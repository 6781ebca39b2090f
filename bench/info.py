"""Say what this machine offers lanterne and what is missing, with the command that would install it.

  lanterne info --json info.json
  mpiexec -n 4 lanterne info --topology     hosts, ranks and links of a job as they were found; or of a file: dgx-8x8

Every answer is tried, not guessed: a library counts as there only if it loads.
"""

import argparse
import importlib
import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TypedDict

from lanterne import __version__
from lanterne.bench.output import report
from lanterne.bench.output.options import add_json
from lanterne.bench.topology import found
from lanterne.errors import LanterneError
from lanterne.transport.own_python import own_python

ANSWER_S = 60
# In another process: who asks CUDA gets a context on a GPU.
_ASK_CUDA = """
import sys
from lanterne.errors import Unavailable
from lanterne.kernels.arrays import require_device
try:
    num_devices = require_device()
except Unavailable as error:
    sys.exit(str(error))
from cupy.cuda import runtime
version, name = runtime.driverGetVersion(), runtime.getDeviceProperties(0)["name"].decode()
print(f"{num_devices} x {name}, CUDA {version // 1000}.{version % 1000 // 10}")
"""


class Component(TypedDict):
    """A part that lanterne can use: what it is where it is there, else why it is not and what installs it."""

    name: str
    available: bool
    detail: str | None
    reason: str | None
    install: str | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    add_json(parser, "the answer")
    parser.add_argument(
        "--topology", nargs="?", const="", metavar="FILE|PRESET", help="show hosts and links of this job, or of a file"
    )


def run(args: argparse.Namespace) -> int:
    """Ask for all components, print and write what they say; the exit code."""
    if args.topology is not None:
        return found.run(args)
    probes = (_mpi, _mpiexec, _ucx, _gpu, _cupy, _nccl, _numba_cuda, _solver, _plots, _torch, _redis, _telemetry, _lab)
    components = [probe() for probe in probes]
    if args.json:
        report.write_json(args.json, report.envelope(components=components, transports=_transports(components)))
    if args.json != "-":
        _print(components)
    return 0


def _print(components: list[Component]) -> None:
    report.write_text(
        f"lanterne {__version__} on {platform.node()}: Python {platform.python_version()}, "
        f"{len(os.sched_getaffinity(0))} cores, {_memory_gib():.0f} GiB of memory\n\n"
    )
    rows = [
        (part["name"], "yes" if part["available"] else "no", part["detail"] if part["available"] else part["reason"])
        for part in components
    ]
    report.print_table([("component", ""), ("here", ""), ("what", "")], rows, left=(0, 1, 2))
    print()
    transports = _transports(components)
    report.print_table(
        [("transport", ""), ("here", "")],
        [(name, "yes" if here else "no") for name, here in transports.items()],
        left=(0, 1),
    )
    missing = [part for part in components if not part["available"] and part["install"]]
    if missing:
        print("\nto install what is missing (.[NAME] in a checkout; else FILE.whl[NAME], the wheel's path):")
        report.print_table(
            [("", ""), ("", "")], [(f"  {part['name']}:", part["install"]) for part in missing], left=(0, 1)
        )


def _transports(components: list[Component]) -> dict[str, bool]:
    here = {part["name"]: part["available"] for part in components}
    return {
        "local": True,
        "mpi": here["MPI"] and here["mpiexec"],
        "ucx": here["UCX"],
        "tcp": True,
        "nccl": here["NCCL"] and here["GPU"],
    }


def _part(name: str, available: bool, detail: str | None, install: str | None = None) -> Component:
    return {
        "name": name,
        "available": available,
        "detail": detail if available else None,
        "reason": None if available else detail,
        "install": None if available else install,
    }


def _ask(command: list[str], **variables: str) -> tuple[bool, str]:
    """(whether `command` answers, what it says, or why it does not); a driver that hangs is a reason, too."""
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=ANSWER_S, check=False, env=os.environ | variables
        )
    except subprocess.TimeoutExpired:
        return False, f"no answer within {ANSWER_S} s"
    said = result.stdout.strip()
    if result.returncode == 0 and said:
        return True, said
    # Python says the reason last and elsewhere, nvidia-smi first.
    lines = result.stderr.strip().splitlines()[-1:] or said.splitlines()[:1]
    return False, lines[0] if lines else f"ended with exit code {result.returncode}"


def _load(name: str) -> tuple[ModuleType | None, str | None]:
    """(module, None) or (None, why it does not load)."""
    try:
        return importlib.import_module(name), None
    except Exception as error:  # a broken library may raise anything while it loads
        return None, str(error).splitlines()[0] if str(error) else type(error).__name__


def _mpi() -> Component:
    # In another process: loading MPI initialises it, and MPI can be initialised once only.
    code = (
        "from mpi4py import MPI; import mpi4py; from lanterne.transport.mpi.library import is_cuda_aware; "
        "print(MPI.Get_library_version().replace(chr(0), '').split(chr(10))[0].strip(), '| mpi4py', mpi4py.__version__,"
        " '| takes device memory' * is_cuda_aware())"
    )
    here, text = _ask([*own_python(), "-c", code])
    return _part("MPI", here, " ".join(text.split()), "pip install '.[mpi]'")


def _mpiexec() -> Component:
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    return _part("mpiexec", found is not None, found or "neither beside python nor on PATH", "pip install '.[mpi]'")


def _ucx() -> Component:
    install = "pip install '.[ucx]'; in a checkout: ./run bench --transport ucx"
    for distribution in ("ucxx-cu12", "ucxx-cu13"):
        try:
            version = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
        code = "from ucxx._lib import libucxx; print('.'.join(map(str, libucxx.get_ucx_version())))"
        here, text = _ask([*own_python(), "-c", code], UCX_WARN_UNUSED_ENV_VARS="n")
        return _part("UCX", here, f"UCX {text} | {distribution} {version}" if here else text, install)
    return _part("UCX", False, "ucxx is not installed", install)


def _gpu() -> Component:
    """What nvidia-smi says, unless CUDA, whose answer counts where CuPy can ask it, has another one."""
    usable, found = _ask([*own_python(), "-c", _ASK_CUDA]) if _load("cupy")[0] else (None, "")
    if usable is False:
        return _part("GPU", False, found)
    here, text = False, "no NVIDIA driver (nvidia-smi not found)"
    if shutil.which("nvidia-smi"):
        here, text = _ask(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"])
        gpus = text.splitlines()
        text = f"{len(gpus)} x {gpus[0]}" if here else text
    return _part("GPU", bool(usable) or here, text if here else found or text)


def _cupy() -> Component:
    module, reason = _load("cupy")
    install = "pip install '.[cuda13]' (driver 580 or newer) or '.[cuda12]'"
    return _part("CuPy", module is not None, module.__version__ if module else reason, install)


def _nccl() -> Component:
    """By the binding that LANTERNE_NCCL names, as a job takes it."""
    from lanterne.transport.nccl.binding import binding_name, checked, find_nccl
    from lanterne.transport.nccl.versions import version_text

    module, reason = _load("cupy")
    if module is None:
        return _part("NCCL", False, reason, "pip install '.[cuda13]' or '.[cuda12]'")
    try:
        library, found = find_nccl(binding_name())
        checked(library, found)
    except LanterneError as error:
        return _part("NCCL", False, str(error).removeprefix("NCCL: "))
    return _part("NCCL", True, f"{version_text(found.nccl or 0)}, by {found.binding}")


def _numba_cuda() -> Component:
    try:
        return _part("numba-cuda", True, metadata.version("numba-cuda"))
    except metadata.PackageNotFoundError:
        return _part("numba-cuda", False, "not installed", "pip install '.[cuda13]' or '.[cuda12]'")


def _solver() -> Component:
    module, reason = _load("ortools")
    what = f"ortools {module.__version__}" if module else f"{reason}; no late_join, no planner `optimal`"
    return _part("CP-SAT", module is not None, what, "pip install '.[plan]'")


def _plots() -> Component:
    module, reason = _load("matplotlib")
    return _part("Matplotlib", module is not None, module.__version__ if module else reason, "pip install '.[plot]'")


def _torch() -> Component:
    try:
        return _part("PyTorch", True, f"{metadata.version('torch')} (for Gloo comparisons and lanterne watch only)")
    except metadata.PackageNotFoundError:
        return _part("PyTorch", False, "not installed (only compared with, never needed)", "pip install '.[torch]'")


def _redis() -> Component:
    try:
        return _part("Redis client", True, metadata.version("redis"))
    except metadata.PackageNotFoundError:
        return _part(
            "Redis client",
            False,
            "not installed; LANTERNE_STORE=redis://... needs it",
            "pip install '.[redis]'",
        )


def _telemetry() -> Component:
    from lanterne.failslow.operate.telemetry import HostTelemetry

    told = HostTelemetry().read()
    known = ", ".join(name for name in told if name != "absent")
    absent = f"; not {'; '.join(told['absent'])}" if told["absent"] else ""
    return _part("telemetry", bool(known), f"{known or 'nothing can be read'}{absent}", "pip install '.[nvml]'")


def _lab() -> Component:
    missing = [tool for tool in ("ip", "tc") if not shutil.which(tool)]
    if missing:
        return _part("lab", False, f"{' and '.join(missing)} not found", "apt-get install iproute2")
    if os.geteuid() != 0:
        return _part("lab", False, "network namespaces need root")
    return _part("lab", True, "root, ip and tc are here: lanterne lab can emulate a cluster")


def _memory_gib() -> float:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
