"""Values that decide at run time: each with its unit, where it comes from, and what half and double of it would do.

A module that waits, gives up, keeps or chooses has them in one frozen dataclass of `value`s beside what they steer,
POLICY, and tells of it by `steers`. `lanterne info --policy` prints them all. The unit is in a field's name: `_s`
seconds, `_nbytes` bytes, `_ms` milliseconds; else it is a count or a share.
"""

from dataclasses import field, fields
from typing import Any, NamedTuple, TypeVar

Number = TypeVar("Number", int, float)
Policy = TypeVar("Policy")
UNITS = {"_s": "s", "_nbytes": "B", "_ms": "ms"}


class Steered(NamedTuple):
    """One value: of which module and policy, its name, unit and origin, and what half and double do."""

    module: str
    policy: str
    name: str
    value: float
    unit: str
    origin: str
    half: str
    double: str


_policies: list[type[Any]] = []


def value(default: Number, origin: str, *, half: str, double: str) -> Number:
    """A field of a policy."""
    number: Number = field(default=default, metadata={"origin": origin, "half": half, "double": double})
    return number


def steers(policy: type[Policy]) -> type[Policy]:
    """Tell of a frozen dataclass of `value`s in `steered`."""
    _policies.append(policy)
    return policy


def steered() -> list[Steered]:
    """All values of the modules that have been imported, by module."""
    return sorted(
        Steered(
            policy.__module__,
            policy.__name__,
            each.name,
            float(getattr(policy, each.name)),
            next((unit for ending, unit in UNITS.items() if each.name.endswith(ending)), ""),
            *(each.metadata[what] for what in ("origin", "half", "double")),
        )
        for policy in _policies
        for each in fields(policy)
    )
