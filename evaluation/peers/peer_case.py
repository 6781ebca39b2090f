"""A case of `./run evaluate lab-peers`: how many ranks on which hosts, what they call, and how late one of them is."""

from typing import Any, NamedTuple

from lanterne.bench.output.units import format_nbytes


class PeerCase(NamedTuple):
    """`hosts` of so many ranks, one late by `delay` * s/rate (0: nobody), for `calls` of `nbytes` each, together s.

    `ranks_per_host` is one number, or a text of those of all hosts, such as "1+3+4".
    """

    hosts: int
    nbytes: int
    delay: float
    calls: int = 1
    ranks_per_host: int | str = 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """The ranks of each host."""
        each = self.ranks_per_host
        return (each,) * self.hosts if isinstance(each, int) else tuple(map(int, each.split("+")))

    @property
    def host_of(self) -> tuple[int, ...]:
        """The host of each rank: in the order of hosts where these are alike, else dealt out in turn."""
        sizes = self.sizes
        if isinstance(self.ranks_per_host, int):
            return tuple(host for host, size in enumerate(sizes) for _ in range(size))
        return tuple(host for turn in range(max(sizes)) for host, size in enumerate(sizes) if turn < size)

    @property
    def num_ranks(self) -> int:
        return sum(self.sizes)

    @property
    def shape(self) -> str:
        """Of its hosts: 8, 2*4 or 1+3+4."""
        each = self.ranks_per_host
        if isinstance(each, str):
            return each
        return f"{self.hosts}*{each}" if each > 1 else str(self.hosts)

    def __str__(self) -> str:
        calls = f"{self.calls}*" if self.calls > 1 else ""
        return f"{self.shape}x{calls}{format_nbytes(self.nbytes).replace(' ', '')}@{self.delay:g}"


def case_of(record: dict[str, Any]) -> PeerCase:
    """The PeerCase of a record; files of before know neither several calls nor several ranks on a host."""
    calls, each = record.get("calls", 1), record.get("ranks_per_host", 1)
    return PeerCase(record["hosts"], record["nbytes"], record["delay"], calls, each)
