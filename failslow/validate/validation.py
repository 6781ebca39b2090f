"""The outcome of a validation, as a value that can be written and read."""

from dataclasses import asdict, dataclass
from typing import Any, Self

from lanterne.failslow.validate.judge import Finding
from lanterne.failslow.validate.links import Link

OF_FINDINGS = ("findings", "unsure", "busy")


@dataclass(frozen=True)
class Validation:
    """The outcome of `validate`, the same on all ranks; ranks are those of its communicator.

    Attributes: `findings`, a tuple of Finding, empty where nothing is slow; `unsure`, Findings that a busy machine may
    explain: neither blame nor acquittal; `busy`, Findings of kind "contention": ranks whose cores other work used,
    which is no blame: their peers may be no better off; `ranks` tested; `hosts` of all tested, as numbers from 0;
    `passes` of links (a, b); `sizes`, bytes of the transfers; `compute`, records {rank, load, when, wall_s, cpu_s};
    `links`, records {src, dst, when, latency_s, nbytes, time_s}, between GPUs with their `kind` (link_kinds.py);
    `took_s`; `path`, what the links were tested over, and how many were of which kind.
    """

    findings: tuple[Finding, ...]
    unsure: tuple[Finding, ...]
    busy: tuple[Finding, ...]
    ranks: tuple[int, ...]
    hosts: tuple[int, ...]
    passes: tuple[tuple[Link, ...], ...]
    sizes: tuple[int, ...]
    compute: tuple[dict[str, Any], ...]
    links: tuple[dict[str, Any], ...]
    took_s: float
    path: str = ""

    def to_json(self) -> dict[str, Any]:
        """A document of lists, dicts, numbers and texts."""
        return asdict(self) | {name: [finding._asdict() for finding in getattr(self, name)] for name in OF_FINDINGS}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """The Validation that `to_json` wrote."""
        fields = _frozen(document)
        return cls(**fields | {name: tuple(Finding(**finding) for finding in fields[name]) for name in OF_FINDINGS})


def _frozen(value: Any) -> Any:
    """`value` with tuples for the lists that JSON made of them."""
    if isinstance(value, dict):
        return {name: _frozen(item) for name, item in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
