"""Driver, NCCL and its binding: which versions are here, and whether they go together."""

from collections.abc import Callable
from importlib import metadata
from typing import Any, NamedTuple

from lanterne.errors import Unavailable

# Point to point came with 2.7, several ranks on one GPU with 2.30.
LEAST_VERSION, SHARED_GPU_VERSION = 20700, 23000
# The driver from which on a CUDA of that number runs.
DRIVERS = {11: "450", 12: "525", 13: "580"}


class Versions(NamedTuple):
    """What is here; None is what is not known.

    Attributes: `driver`, the CUDA that the driver runs, as 12040 for 12.4; `nccl`, as 23007 for 2.30.7, and the major
    version `nccl_cuda` of CUDA that it is for; the `binding`'s name and version, the CUDA that it is for, and, of
    nccl4py, the NCCL whose header it was made from.
    """

    driver: int | None = None
    nccl: int | None = None
    nccl_cuda: int | None = None
    binding: str = "CuPy"
    binding_cuda: int | None = None
    header: int | None = None

    def __str__(self) -> str:
        driver = "unknown" if self.driver is None else f"CUDA {self.driver // 1000}.{self.driver % 1000 // 10}"
        nccl = "none" if self.nccl is None else version_text(self.nccl)
        of_cuda = "" if self.nccl_cuda is None else f" for CUDA {self.nccl_cuda}"
        by_cuda = "" if self.binding_cuda is None else f" for CUDA {self.binding_cuda}"
        return f"driver {driver}, NCCL {nccl}{of_cuda}, binding {self.binding}{by_cuda}"


def misfit(found: Versions) -> str:
    """What would fit instead of `found`; "" where nothing is known against it."""
    driver = None if found.driver is None else found.driver // 1000
    for what, cuda in (("binding", found.binding_cuda), ("NCCL", found.nccl_cuda)):
        if driver is not None and cuda is not None and cuda > driver:
            driver_for = f"a driver from {DRIVERS[cuda]} on" if cuda in DRIVERS else "a newer driver"
            return f"{what} for CUDA {driver}: lanterne[cuda{driver}], or {driver_for}"
    if found.binding_cuda and found.nccl_cuda and found.binding_cuda != found.nccl_cuda:
        return f"one CUDA for both: lanterne[cuda{found.binding_cuda}] alone, in an environment of its own"
    if found.nccl is not None and found.nccl < LEAST_VERSION:
        return f"NCCL {version_text(LEAST_VERSION)} or newer: {newer()}"
    if found.nccl is not None and found.header is not None and found.nccl // 100 < found.header // 100:
        return f"NCCL {version_text(found.header)} or newer, which that binding is made for: {newer()}"
    return ""


def check_together(found: Versions) -> None:
    """Raise unless the versions go together, as far as is known.

    Raises:
        Unavailable: they do not.
    """
    if fits := misfit(found):
        raise Unavailable(f"NCCL: got {found}, expected {fits}")


def version_text(version: int) -> str:
    """NCCL's version number as people write it: 21805 is 2.18.5, 2708 is 2.7.8."""
    base = 10000 if version >= 10000 else 1000
    return f"{version // base}.{version % base // 100}.{version % 100}"


def newer() -> str:
    """How a newer NCCL is installed."""
    return "pip install --upgrade nvidia-nccl-cu12 (or -cu13), which lanterne[cuda12] (or [cuda13]) brings"


def with_cupy(cupy: Any, nccl: int | None) -> Versions:
    """The Versions beside CuPy's binding."""
    runtime = cupy.cuda.runtime
    return Versions(
        asked(runtime.driverGetVersion),
        nccl,
        _installed_cuda("nvidia-nccl-cu"),
        f"CuPy {getattr(cupy, '__version__', '')}".strip(),
        _installed_cuda("cupy-cuda"),
    )


def asked(question: Callable[[], Any]) -> int | None:
    """The answer, where there is one: who is too old, or absent, raises whatever it likes."""
    try:
        return int(question())
    except Exception:
        return None


def _installed_cuda(name: str) -> int | None:
    """The CUDA of the one distribution `name`12, `name`13 (with or without an x) that is installed."""
    found = [cuda for cuda in DRIVERS if _is_installed(f"{name}{cuda}") or _is_installed(f"{name}{cuda}x")]
    return found[0] if len(found) == 1 else None


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
