"""CUDA C compiled by CuPy (NVRTC) for the current device, and what is wrong with an installation where that fails."""

from collections.abc import Callable
from typing import Any

from lanterne.errors import Unavailable
from lanterne.kernels.arrays import import_cupy


def raw_kernel(source: str, name: str, options: tuple[str, ...]) -> Callable[..., None]:
    """The cupy.RawKernel `name` of `source`, compiled and loaded for the current device.

    Raises:
        Unavailable: the compiler is missing, or the driver does not take what it makes.
    """
    kernel: Any = import_cupy().RawKernel(source, name, options=options)
    try:
        kernel.compile()
    except Exception as error:
        # The source is known to compile, so it is the installation: no NVRTC, or one that is newer than the driver.
        text = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        raise Unavailable(
            f"CUDA kernels: cannot compile or load {name} ({text}); install lanterne[cuda12] or lanterne[cuda13], "
            "whichever goes with the driver (nvidia-smi tells its CUDA version)"
        ) from error
    return kernel  # a cupy.RawKernel is called as a function
