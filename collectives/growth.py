"""How the communicator of a job's next epoch is made, with ranks that were taken in: alike on them and the others."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeVar

from lanterne.collectives.auto.predict import Factor
from lanterne.collectives.auto.tuning import Tuning
from lanterne.collectives.schedule.cost import CostModel
from lanterne.collectives.topology.topology import Topology, nodes_of
from lanterne.collectives.topology.topology_json import from_document, to_document
from lanterne.errors import TransportError
from lanterne.transport.base import Transport
from lanterne.transport.rank_group import Group
from lanterne.transport.registry import host_transport, open_transport


class Face(Protocol):
    """What is made: a Communicator."""

    def close(self) -> None: ...


Made = TypeVar("Made", bound=Face)


@dataclass(frozen=True)
class KnownLinks:
    """What was measured of a job while it had most ranks, of which some may be dead: their places are there to take.

    Attributes:
        model, factors, topology: as Tuning has them, of the ranks of that time.
        hosts: of each of these ranks.
        place_of: which of these ranks those of this epoch are, by their number in the transport.
    """

    model: CostModel | None
    factors: tuple[Factor, ...]
    topology: Topology | None
    hosts: tuple[str, ...]
    place_of: Mapping[int, int]

    @classmethod
    def of(cls, tuning: Tuning, hosts: Sequence[str], ranks: Sequence[int]) -> "KnownLinks":
        """What `tuning` knows of the transport's `ranks`, which are on `hosts`."""
        place_of = {rank: place for place, rank in enumerate(ranks)}
        return cls(tuning.model, tuning.factors, tuning.topology, tuple(hosts), place_of)

    def placed(self, hosts: Sequence[str]) -> "KnownLinks | None":
        """The same for ranks on `hosts`, of which those of `place_of` were there; None where others find no place.

        A rank that is new takes a place of its host, or of a host of which nobody is left: those of one host all of the
        same one, taken to be as fast.
        """
        if self.model is None:
            return None
        place_of, stands_for = dict(self.place_of), dict[str, str]()
        for rank, host in enumerate(hosts):
            if rank in self.place_of:
                continue
            free = [place for place in range(len(self.hosts)) if place not in place_of.values()]
            if host not in self.hosts and host not in stands_for:
                present = {*hosts, *stands_for.values()}
                stands_for[host] = next((self.hosts[place] for place in free if self.hosts[place] not in present), host)
            wanted = stands_for.get(host, host)
            place = next((place for place in free if self.hosts[place] == wanted), None)
            if place is None:
                return None
            place_of[rank] = place
        renamed = list(self.hosts)
        for rank, place in place_of.items():
            renamed[place] = hosts[rank]
        return KnownLinks(self.model, self.factors, self.topology, tuple(renamed), place_of)

    @property
    def topology_here(self) -> Topology | None:
        """Of the ranks of this epoch."""
        places = [self.place_of[rank] for rank in sorted(self.place_of)]
        return None if self.topology is None else self.topology.of_ranks(places)

    def teach(self, tuning: Tuning) -> None:
        """Let `tuning`, of all ranks of this epoch, choose by what is known. Call it alike on all of them."""
        factors = self.factors if len(self.place_of) == len(self.hosts) else ()
        topology = self.topology_here
        tuning.adopt(self.model if topology is None else topology.slowest, "told", factors, topology)

    def also_of(self, hosts: Sequence[str]) -> bool:
        """Whether ranks on `hosts`, more than there were, have links as these: of one host, or of one host each."""
        return self.model is not None and self.topology is None and len(nodes_of(hosts)) in (1, len(hosts))

    def told(self, place: int, *, deterministic: bool, whole: bool) -> bytes:
        """What a rank that was there before, in `place`, tells those that join: all that is known, or that alone."""
        document: dict[str, Any] = {"place": place}
        if whole:
            document |= {
                "model": None if self.model is None else asdict(self.model),
                "factors": self.factors,
                "topology": None if self.topology is None else to_document(self.topology),
                "hosts": self.hosts,
                "deterministic": deterministic,
            }
        return json.dumps(document).encode()


def understand(told: Sequence[bytes]) -> tuple[KnownLinks | None, bool]:
    """What those that were there before know, whose places are by their new ranks, and if they are deterministic.

    Args:
        told: by each rank; see KnownLinks.told. Empty: by one that is new. None where all are.
    """
    documents = {rank: json.loads(each) for rank, each in enumerate(told) if each}
    known = next((each for each in documents.values() if "hosts" in each), None)
    if known is None:
        return None, False
    links = KnownLinks(
        None if known["model"] is None else CostModel(**known["model"]),
        tuple(Factor(*each) for each in known["factors"]),
        None if known["topology"] is None else from_document(known["topology"], "topology of the job"),
        tuple(known["hosts"]),
        {rank: each["place"] for rank, each in documents.items()},
    )
    return links, known["deterministic"]


def node_names(hosts: Sequence[str], topology: Topology | None) -> tuple[str, ...]:
    """By what ranks are known to share a node: their `hosts`, unless `topology` has them on other nodes."""
    if topology is None or sorted(topology.nodes) == sorted(nodes_of(hosts)):
        return tuple(hosts)
    return tuple(f"node {node}" for node in topology.node_of)


def open_after(before: Transport) -> Callable[[Group, float], Transport]:
    """Return what opens the transport of the epoch after that of `before`, of the same name."""
    return lambda group, limit_s: open_transport(before.name, group, limit_s, before)


def open_named(name: str) -> Callable[[Group, float], Transport]:
    """What opens the transport of that name, or, where nobody has said one, of host memory."""
    return lambda group, limit_s: open_transport(name or host_transport(group, limit_s), group, limit_s)


def enter(
    group: Group,
    open_transport_of: Callable[[Group, float], Transport],
    make: Callable[[Transport, Group, KnownLinks | None, bool], Made],
    limit_s: float,
    told: bytes = b"",
) -> Made | None:
    """What `make` makes of the ranks of `group`, for whom an epoch begins; None: one did not get so far.

    All its ranks call it. If it is None on one it is on all; the group is left then, and the epoch before goes on.

    Args:
        open_transport_of: opens the transport of these ranks: open_named's or open_after's.
        make: gets it, with what those that were there before know and have set.
        told: see KnownLinks.told; empty: of a newcomer.
    """
    with ExitStack() as undo:
        undo.callback(group.abandon)
        try:
            known, deterministic = understand(group.exchange("lanterne/known", told, limit_s))
            opened = open_transport_of(group, limit_s)
            undo.callback(opened.close)
            made = make(opened, group, known, deterministic)
            undo.callback(made.close)
            if group.begin(limit_s):
                undo.pop_all()
                return made
        except TransportError:
            pass  # A rank has died meanwhile, or did not come.
    return None
