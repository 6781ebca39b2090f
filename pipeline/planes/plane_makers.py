"""Every data plane by name, over links as they are or over emulated ones.

A maker is a function `f(comm, links, **options) -> DataPlane` that all ranks of `comm` call alike. `links` is None or
{(source, destination): Link}, ranks of `comm`: the plane's messages then go over links of that latency and bandwidth.
"""

from collections.abc import Collection
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from lanterne.collectives.communicator import Communicator, core_of
from lanterne.errors import InputError, one_of
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planes.data_plane import DataPlane
from lanterne.pipeline.planes.delegate import PROBE_NBYTES, DelegatePlane, measured_queues, near_pairs
from lanterne.pipeline.planes.inline import Inline
from lanterne.pipeline.planes.observed import ObservedPlane
from lanterne.pipeline.planes.paired import Paired
from lanterne.pipeline.simulate.check_plan import CheckedPlan
from lanterne.pipeline.simulate.simulate import Timeline, simulate
from lanterne.transport.base import Transport
from lanterne.transport.rails.rail import MEMORY
from lanterne.transport.shaped import Links, ShapedTransport


class Maker(NamedTuple):
    """Where a data plane's maker is, what it does in one line, and how its sends are simulated: the options of
    `simulate`.
    """

    module: str
    function: str
    about: str
    simulated: dict[str, Any]


# A module is imported when its plane is asked for.
PLANES: dict[str, Maker] = {
    "inline": Maker(
        "plane_makers",
        "inline",
        "sent in order by the computing rank, which waits: head-of-line blocking",
        {"in_order": True, "queue": 1},
    ),
    "paired": Maker(
        "plane_makers",
        "paired",
        "sent once the receiver waits for it: a stream for each direction",
        {"rendezvous": True},
    ),
    "paired_o": Maker("plane_makers", "unbounded", "the same with receives posted ahead, in the senders' order", {}),
    "unbounded": Maker(
        "plane_makers", "unbounded", "sent by the computing rank, which never waits: an ideal to compare with", {}
    ),
    "delegate": Maker(
        "plane_makers", "delegate", "lent shared memory; between hosts CPU processes send: the rank never waits", {}
    ),
    "streams": Maker(
        "plane_makers", "streams", "from GPU to GPU over nccl, queued on streams: the rank's CPU never waits", {}
    ),
}


def make_plane(name: str, comm: Communicator, links: Links | None = None, **options: Any) -> DataPlane:
    """The data plane `name` for the ranks of `comm`; all of them call it. Close it before `comm`.

    Raises:
        InputError: an unknown name.
    """
    maker = find_plane(name)
    plane: DataPlane = getattr(import_module(f".{maker.module}", __package__), maker.function)(comm, links, **options)
    return plane


def find_plane(name: str) -> Maker:
    """The Maker called `name`. Raises InputError for an unknown name."""
    if name not in PLANES:
        raise InputError(f"data plane: {one_of(name, PLANES)}")
    return PLANES[name]


def predict(name: str, checked: CheckedPlan, problem: Problem, **options: Any) -> Timeline:
    """The Timeline that `simulate` gives for a CheckedPlan over the data plane `name` with its `options`."""
    known = find_plane(name).simulated
    return simulate(checked, problem, **known | {key: value for key, value in options.items() if key in known})


def shaped(
    comm: Communicator, links: Links | None, *, in_order: bool = False, rendezvous: bool = False
) -> Communicator:
    """A Communicator of the ranks of `comm`, on its transport, with tags of its own and emulated links; all call it.

    Args:
        links, in_order, rendezvous: as ShapedTransport has them, but ranks of `comm`.
    """
    own = {(comm.ranks[source], comm.ranks[peer]): link for (source, peer), link in (links or {}).items()}
    return _own(comm, ShapedTransport(_unshaped(comm), own, in_order=in_order, separate=True, rendezvous=rendezvous))


def _own(comm: Communicator, transport: Transport | None = None) -> Communicator:
    """A Communicator of the ranks of `comm` for a plane alone. Who waits late for a message delays all that follow."""
    own: Communicator = comm.split(0, comm.rank, transport or _unshaped(comm))
    core = core_of(own)
    core.pauses = core.pauses.finer()
    return own


def _unshaped(comm: Communicator) -> Transport:
    """The transport of `comm` without emulated links: a plane emulates its own."""
    transport = comm.transport
    return transport.inner if isinstance(transport, ShapedTransport) else transport


def adapting(comm: Communicator) -> ObservedPlane:
    """Inline over emulated links; a pair of ranks that is diverted has delegates, as many as its messages need."""

    def delegates(pair: tuple[int, int]) -> DataPlane:
        produced = np.array([plane.produced_bytes_per_s if comm.rank in pair else 0.0])
        comm.all_reduce(produced, produced, op="max")
        queues = 1
        # Neighbours in memory hand messages over themselves. A link that is too slow for any number of queues gets one.
        if pair not in near_pairs(comm):
            with suppress(InputError):
                queues = measured_queues(comm, produced[0], PROBE_NBYTES // 4, pairs=[pair])
        return make_plane("delegate", comm, {}, pairs=[pair], queues=queues)

    plane = ObservedPlane(comm.rank, make_plane("inline", comm, {}), delegates)
    return plane


def inline(comm: Communicator, links: Links | None = None, queue: int | None = 1) -> DataPlane:
    """What frameworks do: one message under way per rank, its latency included, and `queue` sends that may wait."""
    return Inline(shaped(comm, links, in_order=True), queue=queue, owned=True)


def unbounded(comm: Communicator, links: Links | None = None) -> DataPlane:
    """Sends leave at once, side by side, and nobody waits for them; between ranks of one host in memory."""
    direct, pairs = Inline(shaped(comm, links), queue=None, owned=True), near_pairs(comm)
    return DelegatePlane(_own(comm), direct, links, pairs, rails=(MEMORY,)) if pairs else direct


def delegate(
    comm: Communicator,
    links: Links | None = None,
    pairs: Collection[tuple[int, int]] | None = None,
    direct: str = "inline",
    **options: Any,
) -> DataPlane:
    """Delegates for `pairs` of ranks, or all; the data plane `direct` for the others. Options are DelegatePlane's."""
    others = None if pairs is None else make_plane(direct, comm, links)
    return DelegatePlane(_own(comm), others, links, pairs, **options)


def streams(comm: Communicator, links: Links | None = None, **options: Any) -> DataPlane:
    """Messages of device memory, by NCCL; options as Streams has them."""
    from lanterne.pipeline.planes.streams import Streams

    if not comm.transport.capabilities.stream_ordered:
        raise InputError(f"data plane streams: got transport {comm.transport.name}, expected nccl")
    return Streams(_own(comm), links, **options)


def paired(comm: Communicator, links: Links | None = None) -> DataPlane:
    """Messages move once both ends have posted them; see paired.py."""
    direct, pairs = Paired(shaped(comm, links, rendezvous=True), owned=True), near_pairs(comm)
    if not pairs:
        return direct
    return DelegatePlane(_own(comm), direct, links, pairs, rails=(MEMORY,), rendezvous=True)
