"""Every data plane by name, over links as they are or over emulated ones.

A maker is a function `f(comm, links, **options) -> DataPlane` that all ranks of `comm` call alike. `links` is None or
{(source, destination): Link}, ranks of `comm`: the plane's messages then go over links of that latency and bandwidth.
"""

from importlib import import_module
from typing import NamedTuple

from lanterne.collectives.communicator import core_of
from lanterne.errors import InputError, one_of
from lanterne.pipeline.planes.delegate import DelegatePlane, near_pairs
from lanterne.pipeline.planes.inline import Inline
from lanterne.pipeline.planes.paired import Paired, PairedInMemory
from lanterne.pipeline.simulate.rendezvous import simulate_rendezvous
from lanterne.pipeline.simulate.simulate import simulate
from lanterne.transport.rails.rail import MEMORY
from lanterne.transport.shaped import ShapedTransport


class Maker(NamedTuple):
    """Where a data plane's maker is, what it does in one line, and how its sends are simulated: the options of
    `simulate`, or {"rendezvous": True}.
    """

    module: str
    function: str
    about: str
    simulated: dict


# A module is imported when its plane is asked for.
PLANES = {
    "inline": Maker(
        "registry",
        "inline",
        "sent in order by the computing rank, which waits: head-of-line blocking",
        {"in_order": True, "queue": 1},
    ),
    "paired": Maker(
        "registry", "paired", "sent once the receiver waits for it: a stream for each direction", {"rendezvous": True}
    ),
    "paired_o": Maker("registry", "unbounded", "the same with receives posted ahead, in the senders' order", {}),
    "unbounded": Maker(
        "registry", "unbounded", "sent by the computing rank, which never waits: an ideal to compare with", {}
    ),
    "delegate": Maker(
        "registry", "delegate", "lent shared memory; between hosts CPU processes send: the rank never waits", {}
    ),
    "streams": Maker(
        "registry", "streams", "from GPU to GPU over nccl, queued on streams: the rank's CPU never waits", {}
    ),
}


def make_plane(name, comm, links=None, **options):
    """The data plane `name` for the ranks of `comm`; all of them call it. Close it before `comm`.

    Raises:
        InputError: an unknown name.
    """
    maker = find_plane(name)
    return getattr(import_module(f".{maker.module}", __package__), maker.function)(comm, links, **options)


def find_plane(name):
    """The Maker called `name`. Raises InputError for an unknown name."""
    if name not in PLANES:
        raise InputError(f"data plane: {one_of(name, PLANES)}")
    return PLANES[name]


def predict(name, checked, problem, **options):
    """The Timeline that `simulate` gives for a CheckedPlan over the data plane `name` with its `options`."""
    known = find_plane(name).simulated
    if "rendezvous" in known:
        return simulate_rendezvous(checked, problem)
    return simulate(checked, problem, **known | {key: value for key, value in options.items() if key in known})


def shaped(comm, links, in_order=False, rendezvous=False):
    """A Communicator of the ranks of `comm`, on its transport, with tags of its own and emulated links; all call it.

    Args:
        links, in_order, rendezvous: as ShapedTransport has them, but ranks of `comm`.
    """
    links = {(comm.ranks[source], comm.ranks[peer]): link for (source, peer), link in (links or {}).items()}
    return _own(comm, ShapedTransport(comm.transport, links, in_order=in_order, separate=True, rendezvous=rendezvous))


def _own(comm, transport=None):
    """A Communicator of the ranks of `comm` for a plane alone. Who waits late for a message delays all that follow."""
    own = comm.split(0, comm.rank, transport)
    core = core_of(own)
    core.pauses = core.pauses.finer()
    return own


def inline(comm, links=None, queue=1):
    """What frameworks do: one message under way per rank, its latency included, and `queue` sends that may wait."""
    return Inline(shaped(comm, links, in_order=True), queue=queue, owned=True)


def unbounded(comm, links=None):
    """Sends leave at once, side by side, and nobody waits for them; between ranks of one host in memory."""
    direct, pairs = Inline(shaped(comm, links), queue=None, owned=True), near_pairs(comm)
    return DelegatePlane(_own(comm), direct, links, pairs, rails=(MEMORY,)) if pairs else direct


def delegate(comm, links=None, pairs=None, direct="inline", **options):
    """Delegates for `pairs` of ranks, or all; the data plane `direct` for the others. Options as DelegatePlane has them."""
    others = None if pairs is None else make_plane(direct, comm, links)
    return DelegatePlane(_own(comm), others, links, pairs, **options)


def streams(comm, links=None, **options):
    """Messages of device memory, by NCCL; options as Streams has them."""
    from lanterne.pipeline.planes.streams import Streams

    if not comm.transport.capabilities.stream_ordered:
        raise InputError(f"data plane streams: got transport {comm.transport.name}, expected nccl")
    return Streams(_own(comm), links, **options)


def paired(comm, links=None):
    """Messages move once both ends have posted them; see paired.py."""
    direct, pairs = Paired(shaped(comm, links, rendezvous=True), owned=True), near_pairs(comm)
    return PairedInMemory(_own(comm), direct, links, pairs) if pairs else direct
