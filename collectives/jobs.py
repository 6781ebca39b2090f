"""How a program gets its Communicator: `init` in a process of a job, `spawn` for ranks that are threads."""

import contextlib
import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple, Unpack

from lanterne import __version__
from lanterne.collectives.auto.tuning import GPUS, THREADS
from lanterne.collectives.growth import KnownLinks, enter, node_names, open_named
from lanterne.collectives.topology.presets import find_topology
from lanterne.collectives.topology.topology import Topology
from lanterne.collectives.topology.topology_json import to_document
from lanterne.errors import InputError, LanterneError, PeerFailed, TransportError, TransportTimeout
from lanterne.transport.base import Transport
from lanterne.transport.job.bootstrap import (
    MeetingPlace,
    ask_to_join,
    connect,
    connect_at,
    launched_rank,
    tell_in_one_line,
)
from lanterne.transport.local import LocalWorld
from lanterne.transport.rank_group import Group
from lanterne.transport.registry import TRANSPORTS, find_transport, has_ucx, host_transport, open_transport
from lanterne.transport.store.connection import StoreLost
from lanterne.transport.store.redis_lease import is_url
from lanterne.transport.store.terms import OPEN, Terms
from lanterne.transport.timeouts import DEFAULT_TIMEOUT_S, check_timeout_s

if TYPE_CHECKING:
    from lanterne.collectives.communicator import Communicator

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

# So often a process tries to be taken into a job, among whose ranks somebody dies meanwhile.
ATTEMPTS = 10

_thread = threading.local()

log: logging.Logger = logging.getLogger(__name__)


def init(
    transport: str | None = None,
    timeout_s: float | None = None,
    *,
    deterministic: bool = False,
    spare_rails: Sequence[str] = (),
    topology: str | Topology | None = None,
    join: str | None = None,
    place: int | None = None,
    model: str = "",
) -> "Communicator":
    """The Communicator of all ranks of this job.

    A job is what an MPI launcher, Slurm's srun, `lanterne ... -n` or torchrun-style variables (RANK, WORLD_SIZE,
    MASTER_ADDR, MASTER_PORT) made; inside `spawn` it is that; else one rank.

    Args:
        transport: "mpi", "ucx", "tcp", "nccl" or "local" (threads of one process); None for LANTERNE_TRANSPORT, else
            "mpi" under an MPI launcher, and under the other variables "ucx" or "tcp": tcp where a rank has no ucx, and
            between hosts without RDMA (transport/networks.py).
        timeout_s: the default of every wait, seconds; None for LANTERNE_TIMEOUT_S, 60.
        deterministic: no decision at run time that changes the order of sums: nobody finds out who is late.
        spare_rails: addresses or interfaces of this host, or "tcp", as many on every rank: where all messages go over
            once MPI's or UCX's own path to a peer dies (transport/rails/spare.py). Every message then costs a copy.
        topology: a file (docs/topology.md), a preset such as "dgx-2x8", or a Topology, alike on all ranks; `auto` goes
            by it, and nothing is measured. None for LANTERNE_TOPOLOGY, else what is found.
        join: host:port of the store of a job that runs, such as its MASTER_ADDR:MASTER_PORT, or its URL in
            LANTERNE_STORE, with its LANTERNE_TOKEN:
            this process waits, `timeout_s` at most, until the job's ranks take it in (Communicator.grow), and nothing
            else says in which job it is. None for LANTERNE_JOIN, which launchers that start a rank again set.
        place: of `join`: the rank that it was, or stands for; None for RANK, else any, a new one where none is free.
        model: of `join`: as those that take it in give to `grow`.

    Raises:
        InputError: no such transport, or it cannot span this job; rails that cannot be; a topology that a rank cannot
            read, that is not the same on all ranks, or has other ranks: on all ranks, before anything is sent.
        Unavailable: its library is missing.
        TransportTimeout: another rank did not come.
        TransportError: the job that is to be joined does not take this rank in; says why.
    """
    if isinstance(spare_rails, str):
        raise InputError(f"spare rails: got {spare_rails!r}, expected a tuple of addresses or interfaces")
    name = transport or os.environ.get("LANTERNE_TRANSPORT")
    if name not in (None, "local"):
        find_transport(name)
    spawned: Communicator | None = getattr(_thread, "communicator", None)
    if spawned is not None:
        if transport not in (None, "local"):
            raise InputError(f"transport: got {transport!r} inside spawn, expected local or none")
        return spawned
    limit_s = check_timeout_s(timeout_s)
    if address := join or os.environ.get("LANTERNE_JOIN"):
        return _taken_in(address, place, Terms(__version__, name or OPEN, model), limit_s, deterministic=deterministic)
    try:
        return _of_the_start(name, limit_s, spare_rails, topology, deterministic=deterministic)
    except TransportError as error:
        address = os.environ.get("LANTERNE_STORE")
        if os.environ.get("LANTERNE_RESTARTS", "0") == "0" or not address or spare_rails:
            raise
        # Who died is started again: all that are left are taken in with it, once nobody is in the job any more.
        log.warning("lanterne: rank %d begins again: %s", launched_rank(), error)
        return _taken_in(address, place, Terms(__version__, name or OPEN, model), limit_s, deterministic=deterministic)


def _of_the_start(
    name: str | None,
    timeout_s: float | None,
    spare_rails: Sequence[str],
    topology: str | Topology | None,
    *,
    deterministic: bool,
) -> "Communicator":
    """The Communicator of all ranks that were started together."""
    group = connect(timeout_s)
    try:
        known = agreed_topology(topology or os.environ.get("LANTERNE_TOPOLOGY"), group.world_size, group.exchange)
        if group.world_size == 1 and name in (None, "local"):
            opened: Transport = LocalWorld(1).transport(0, timeout_s)
        elif name == "local":
            raise InputError(
                f"transport: got 'local' in a job of {group.world_size} processes, expected {' or '.join(TRANSPORTS)}"
            )
        else:
            opened = open_transport(name or host_transport(group, timeout_s), group, timeout_s)
            if spare_rails:
                opened = _with_spare_rails(opened, spare_rails, group)
    except LanterneError as error:
        group.abandon()
        tell_in_one_line(error)
        raise
    return open_communicator(opened, group, deterministic=deterministic, topology=known)


def _taken_in(
    address: str, place: int | None, terms: Terms, timeout_s: float | None, *, deterministic: bool
) -> "Communicator":
    """The Communicator of the job at `address`, once it has grown by this rank."""
    from lanterne.collectives.communicator import Communicator

    limit_s = DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s
    if terms.transport == "ucx":
        has_ucx()  # Loading it takes a third of a second, for which the others would have to wait.
    for _ in range(ATTEMPTS):
        try:
            group, agreed = ask_to_join(address, place, terms, limit_s)
        except (StoreLost, PeerFailed) as error:
            if isinstance(error, StoreLost) and not is_url(address):
                raise
            log.info("lanterne: %s", error)
            continue
        found = enter(group, open_named(agreed.transport), Communicator._of_epoch, limit_s)
        if found is not None:
            # Where there is nobody who was there before, it is as all of these have asked for.
            found.deterministic |= deterministic and len(found.newcomers) == found.world_size
            return found
    raise TransportTimeout(f"join: each of {ATTEMPTS} times a rank of the job at {address} died, or did not come")


def agreed_topology(
    given: str | Topology | None, world_size: int, exchange: Callable[[str, bytes], list[bytes]]
) -> Topology | None:
    """The Topology that all ranks were `given`; None where none was. All call it.

    Args:
        exchange: Group.exchange.

    Raises:
        InputError: on all ranks, what is wrong on one of them.
    """
    topology, told = None, b""
    try:
        if given is not None:
            topology = given if isinstance(given, Topology) else find_topology(given)
            if topology.world_size != world_size:
                raise InputError(f"{topology.name}: got {topology.world_size} ranks, expected the job's {world_size}")
            # Not its name: a file without one is called by its path, and hosts may have theirs at other paths.
            document = to_document(replace(topology, name="topology"))
            told = hashlib.sha256(json.dumps(document).encode()).hexdigest().encode()
    except InputError as error:
        told = b"!" + str(error).encode()
    answers = exchange("lanterne/topology", told)
    for rank, answer in enumerate(answers):
        if answer.startswith(b"!"):
            raise InputError(f"rank {rank}: {answer[1:].decode()}")
    differing = next((rank for rank, answer in enumerate(answers) if answer != answers[0]), None)
    if differing is not None:
        raise InputError(f"topology: rank {differing} got another than rank 0, expected the same on every rank")
    return topology


def join(
    store: "MeetingPlace",
    rank: int,
    world_size: int,
    transport: str | None = None,
    timeout_s: float | None = None,
    *,
    deterministic: bool = False,
) -> "Communicator":
    """The Communicator of `world_size` ranks that somebody else has numbered, and that meet at a store of hers.

    Nothing of the environment says who is in the job: a program may be in several.

    Args:
        store: any object with `set(key, text)` and `get(key)`, which waits for the key and returns bytes; such as a
            torch.distributed.Store. The address of lanterne's own store and its token go over it, so whoever reads it
            can join. All keys begin with "lanterne/"; a place serves one job.
        transport: "ucx", "tcp", "mpi" (whose world must be these ranks) or "nccl"; None for LANTERNE_TRANSPORT, else
            ucx or tcp as `init` has it.
        timeout_s, deterministic: as `init` has them.

    Raises:
        InputError, Unavailable, TransportTimeout: as `init`; and what `store` raises.
    """
    name = transport or os.environ.get("LANTERNE_TRANSPORT")
    if name is not None:
        find_transport(name)
    group = connect_at(store, rank, world_size, check_timeout_s(timeout_s))
    try:
        if world_size == 1:
            opened: Transport = LocalWorld(1).transport(0, timeout_s)
        else:
            opened = open_transport(name or host_transport(group, timeout_s, by_mpi=False), group, timeout_s)
    except LanterneError as error:
        group.abandon()
        tell_in_one_line(error)
        raise
    return open_communicator(opened, group, deterministic=deterministic)


def open_communicator(
    opened: Transport, group: Group, *, deterministic: bool = False, topology: Topology | None = None
) -> "Communicator":
    """The Communicator of all ranks of `group` over the transport `opened`, with a cost model; closed with both."""
    from lanterne.collectives.communicator import Communicator, core_of

    hosts = node_names(group.hosts, topology)
    communicator = Communicator(opened, ranks_here=group.ranks_here, hosts=hosts, closes=(opened, group))
    communicator.deterministic = deterministic
    try:
        if topology is not None:
            communicator.tuning.adopt(topology.slowest, "given", (), topology)
            # By their hosts, for those that are taken in later.
            communicator._known = KnownLinks.of(communicator.tuning, group.hosts, communicator.ranks)
        elif opened.capabilities.stream_ordered and opened.shares_devices:
            # A test: ranks that take turns on a GPU tell nothing of links.
            communicator.tuning.adopt(GPUS, "assumed")
        else:
            core = core_of(communicator)
            core.share_memory()
            communicator.tuning.learn(shares_memory=core.shares_memory)
    except LanterneError as error:
        group.abandon()  # The others are told that this rank has failed, and not that it has left.
        communicator.close()
        tell_in_one_line(error)
        raise
    return communicator


def _with_spare_rails(opened: Transport, rails: Sequence[str], group: Group) -> Transport:
    from lanterne.transport.rails.spare import SpareTransport

    if not opened.capabilities.host_memory or opened.capabilities.stream_ordered:
        raise InputError(f"spare rails: got transport {opened.name}, expected mpi or ucx")
    return SpareTransport(opened, rails, lambda told: group.exchange("lanterne/spare", told), group.check_peers)


def spawn(
    world_size: int,
    function: "Callable[[Communicator, Unpack[Arguments]], Result]",
    *args: "Unpack[Arguments]",
    timeout_s: float | None = None,
) -> list[Result]:
    """Run `function(communicator, *args)` on `world_size` threads, each one rank; return the list of results by rank.

    Inside, `lanterne.init()` returns the thread's communicator. When a rank raises, the others' waits end with
    PeerFailed, and the first error is raised here, with a note that names its rank.
    """
    from lanterne.collectives.communicator import Communicator

    if not callable(function):
        raise InputError(f"spawn: got {function!r}, expected a function of a Communicator")
    world = LocalWorld(world_size)
    transports = [world.transport(rank, timeout_s) for rank in range(world_size)]
    results: dict[int, Result] = {}
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        transport = transports[rank]
        communicator = _thread.communicator = Communicator(transport, closes=(transport,))
        communicator.tuning.adopt(THREADS, "threads")
        with contextlib.suppress(BaseException), communicator:
            try:
                results[rank] = function(communicator, *args)
            except BaseException as error:
                # Noted before the communicator tells the others, whose errors come second.
                error.add_note(f"raised on rank {rank} of {world_size}")
                errors.append(error)
                raise

    threads = [threading.Thread(target=run, args=(rank,), name=f"lanterne-rank-{rank}") for rank in range(world_size)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        for transport in transports:
            transport.fail("interrupted")
        raise
    if errors:
        raise errors[0]
    return [results[rank] for rank in range(world_size)]
