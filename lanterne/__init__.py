"""lanterne: collectives and pipelines that stay fast although one rank is late or one link is slow.

The subpackages are `lanterne.kernels`, `.transport`, `.collectives`, `.pipeline`, `.failslow` and `.bench`. The names
below load on first use, so that `import lanterne` costs nothing: no MPI, UCX or CUDA is touched before it is needed.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what tools read; at run time __getattr__ finds the same names by _PUBLIC
    from lanterne.collectives.communicator import Communicator
    from lanterne.collectives.jobs import init, join, spawn
    from lanterne.errors import (
        InputError,
        LanterneError,
        PeerFailed,
        Revoked,
        ScheduleError,
        TransportError,
        TransportTimeout,
        Unavailable,
    )
    from lanterne.failslow.record.watch import watch
    from lanterne.failslow.validate.validate import validate
    from lanterne.kernels.dtypes import PremulSum

__version__ = "0.1.0"

if not os.path.isdir(os.path.join(__path__[0], "bench")):
    # In a checkout that was never installed the subpackages lie beside this folder.
    __path__.append(os.path.dirname(os.path.realpath(__path__[0])))

__all__ = [
    "Communicator",
    "InputError",
    "LanterneError",
    "PeerFailed",
    "PremulSum",
    "Revoked",
    "ScheduleError",
    "TransportError",
    "TransportTimeout",
    "Unavailable",
    "__version__",
    "init",
    "join",
    "spawn",
    "validate",
    "watch",
]

_PUBLIC = {
    "Communicator": "collectives.communicator",
    "PremulSum": "kernels.dtypes",
    "init": "collectives.jobs",
    "join": "collectives.jobs",
    "spawn": "collectives.jobs",
    "validate": "failslow.validate.validate",
    "watch": "failslow.record.watch",
    "LanterneError": "errors",
    "InputError": "errors",
    "Unavailable": "errors",
    "ScheduleError": "errors",
    "TransportError": "errors",
    "TransportTimeout": "errors",
    "PeerFailed": "errors",
    "Revoked": "errors",
}


if not TYPE_CHECKING:  # a checker that saw it would believe in every name

    def __getattr__(name: str) -> object:
        if name not in _PUBLIC:
            raise AttributeError(f"module 'lanterne' has no attribute {name!r}")
        value: object = getattr(import_module(f"lanterne.{_PUBLIC[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
