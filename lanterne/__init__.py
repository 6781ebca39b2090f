"""lanterne: collectives and pipelines that stay fast although one rank is late or one link is slow.

The subpackages are `lanterne.kernels`, `.transport`, `.collectives`, `.pipeline`, `.failslow` and `.bench`. The names
below load on first use, so that `import lanterne` costs nothing: no MPI, UCX or CUDA is touched before it is needed.
"""

from importlib import import_module
from pathlib import Path

__version__ = "0.1.0"

# In a checkout the subpackages lie beside this folder, not inside it (pyproject.toml maps them for the wheel).
_checkout = Path(__file__).resolve().parent.parent
if (_checkout / "pyproject.toml").is_file() and (_checkout / "collectives" / "__init__.py").is_file():
    __path__.append(str(_checkout))

_PUBLIC = {
    "Communicator": "collectives.communicator",
    "init": "collectives.jobs",
    "spawn": "collectives.jobs",
    "validate": "failslow.validate",
    "watch": "failslow.watch",
    "LanterneError": "errors",
    "InputError": "errors",
    "Unavailable": "errors",
    "ScheduleError": "errors",
    "TransportError": "errors",
    "TransportTimeout": "errors",
    "PeerFailed": "errors",
}
__all__ = ["__version__", *_PUBLIC]


def __getattr__(name):
    if name not in _PUBLIC:
        raise AttributeError(f"module 'lanterne' has no attribute {name!r}")
    value = getattr(import_module(f".{_PUBLIC[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted(__all__)
