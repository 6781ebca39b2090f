"""What is measured of a group for `auto`: alpha, beta and gamma, and where algorithms differ from them.

The model is fitted to the rounds of our ring; trials tell by which factor each algorithm is off it (trials.py). Both
are kept for the group's hosts in LANTERNE_CACHE, a folder, "off" for none; jobs that take them from there try other
sizes and try again now and then, briefly. With LANTERNE_TRIALS=off on rank 0 there are none: the model alone decides.
"""

import hashlib
import json
import logging
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lanterne import __version__
from lanterne.collectives.algorithms.hierarchical.compose import Nodes
from lanterne.collectives.auto.load_meter import BUSY_CORES, LoadMeter
from lanterne.collectives.auto.predict import Factor, Links, priced_schedule
from lanterne.collectives.auto.slow_nics import faster, measure_slowdowns, of_links
from lanterne.collectives.auto.trials import (
    ENOUGH_S,
    MEASURE_S,
    PAUSE_S,
    Call,
    TrialGroup,
    measure_factors,
    time_calls,
    trial_array,
    try_again,
)
from lanterne.collectives.schedule.cost import CostModel, Piece, price
from lanterne.collectives.topology.topology import INSIDE, NIC, LinkClass, Topology, nodes_of
from lanterne.transport.job.secret import cache_folder

log: logging.Logger = logging.getLogger("lanterne.collectives")

# Bytes of the messages that are timed; the linear model must fit all of them within MISFIT, or it gets pieces.
MESSAGE_NBYTES = (64, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20)


MISFIT = 0.10  # chosen: share by which a line may miss a time, else the model has pieces
REPEATS = 5  # chosen: the least counts
# On one host: so many, how long a measurement takes at most, and the pause before each of its calls.
HOST_REPEATS = 3  # chosen: the least counts
HOST_S = 0.06  # chosen: the program waits
HOST_PAUSE_S = 1e-3
# Of the messages by which it shows whether ranks share a NIC, and calls in a row: a token bucket lets the first
# pass.
SHARING_NBYTES = 256 << 10  # chosen: a token bucket lets less pass
SHARING_CALLS = 3  # chosen: a token bucket lets the first pass
# Small calls are timed several at once, so that a token bucket or a cache does not stand for what a link can
# sustain.
AT_ONCE_NBYTES = 2 << 20  # chosen: beyond a token bucket and caches
MAX_AT_ONCE = 8
# No message is timed whose buffer would be larger on a rank.
MAX_BUFFER_NBYTES = 16 << 20  # chosen: memory of each rank
# Of the messages of a call by which a job finds that what is known was measured beside other work: that only
# adds, so it was if the call takes such a part of what is predicted; where others were seen to use cores, such a
# one.
PROBE_NBYTES = 32 << 10
DISTURBED = 0.6  # chosen: calls differ by as much anyway
DISTURBED_BUSY = 0.85
MAX_PROBED_RANKS = 64  # of more a price takes longer than the call
MAX_AGE_S = 24 * 3600.0  # chosen: a measurement that something disturbed shall not stay for good
AGAIN_AFTER_S = 600.0  # chosen: nor need every one of many short jobs try again


# Bytes of a cache file; a longer one is not read.
MAX_FILE_NBYTES = 16 << 10
SCHEMA_VERSION = 7


class MeasuredLinks(NamedTuple):
    """What was measured of the links of a group.

    Attributes: `model`, of all, or where ranks share nodes of the first ranks of the nodes; then `inside`, of the ranks
    of a node, and `shared`, whether those share its NIC; `slowdown`, by node, of their NICs, of which `model` has the
    slowest; empty where they are alike; `busy`, whether others used cores meanwhile.
    """

    model: CostModel
    inside: CostModel | None = None
    shared: bool = True
    slowdown: tuple[float, ...] = ()
    busy: bool = False

    def topology(self, nodes: Nodes, *, in_rounds: bool = True) -> Topology | None:
        """The Topology of `nodes`; None where no inside was measured, and their NICs are alike.

        Args:
            in_rounds: see Topology.
        """
        if self.inside is None and not self.slowdown:
            return None
        alone = tuple((rank,) for ranks in nodes for rank in ranks)
        shared_by = nodes if self.shared else alone
        model = faster(self.model, max(self.slowdown, default=1.0))
        links = [LinkClass(NIC, model, shared_by, of_links(self.slowdown, nodes, shared_by))]
        if self.inside is not None:
            links.insert(0, LinkClass(INSIDE, self.inside, alone))
        gamma = self.model.gamma_s_per_byte if self.inside is None else self.inside.gamma_s_per_byte
        return Topology(nodes, tuple(links), gamma, "measured", in_rounds)

    def links(self, nodes: Nodes, *, in_rounds: bool = True) -> Links:
        """What predictions go by."""
        return self.topology(nodes, in_rounds=in_rounds) or self.model


class Learned(NamedTuple):
    """What `auto` goes by, the same on all ranks: see Tuning.adopt."""

    model: CostModel
    factors: tuple[Factor, ...]
    source: str
    topology: Topology | None


def learn(communicator: TrialGroup, *, shares_memory: bool = False) -> Learned:
    """What is measured of `communicator`, or known from the cache. A collective call.

    Args:
        shares_memory: the ranks do: short calls go through that, and the first job leaves trials to the next.

    Cost: some 0.3 s on one host; seconds on a slow network. Where the cache knows it a broadcast and a few calls, some
        30 ms, and 0.3 s if nobody has tried yet or for AGAIN_AFTER_S.
    """
    file = _cache_file(communicator)
    # Whether there may be trials, whether what is known is old, and its text.
    found = np.zeros(2 + MAX_FILE_NBYTES, np.uint8)
    if communicator.rank == 0:
        text, is_old = (b"", True) if file is None else _read(file)
        found[:2] = _tries(), is_old
        found[2 : 2 + len(text)] = np.frombuffer(text, np.uint8)
    communicator.broadcast(found, root=0, algorithm="binomial")
    known, nodes = _parse(found[2:].tobytes().rstrip(b"\0")), nodes_of(communicator.hosts)
    in_rounds = communicator.transport.capabilities.stream_ordered
    if known is not None:
        links = known[1].links(nodes, in_rounds=in_rounds)
        known = None if was_disturbed(communicator, links, busy=known[1].busy) else known
    due = bool(found[0] and (found[1] or not known[2] if known else not shares_memory))
    factors: tuple[Factor, ...]
    measured_s, measured, factors = known or (time.time(), _measured(communicator), ())
    topology = measured.topology(nodes, in_rounds=in_rounds)
    links = topology or measured.model
    if due:
        more = measure_factors(communicator, links, factors, shares_memory=shares_memory)
        factors = try_again(communicator, links, factors) if more == factors else more
    if communicator.rank == 0 and file is not None and (known is None or due):
        _write(file, measured_s, measured, factors)
    return Learned(measured.model, factors, "measured" if known is None else "cache", topology)


def _measured(communicator: TrialGroup) -> MeasuredLinks:
    """As measure_links, with whether others were busy on a machine of the group meanwhile."""
    meter = LoadMeter()
    measured = measure_links(communicator)
    if communicator.world_size > MAX_PROBED_RANKS or communicator.transport.capabilities.stream_ordered:
        return measured
    return measured._replace(busy=bool(meter.foreign_cores(communicator) > BUSY_CORES))


def was_disturbed(communicator: TrialGroup, links: Links, *, busy: bool = False) -> bool:
    """Whether `links` were measured beside other work, the same on all ranks: a call takes far less now.

    A collective call.

    Args:
        busy: others used cores then.

    Cost: some 20 ms on one host, a few times 20 us a rank on a network of 1 Gbit/s.
    """
    if communicator.world_size > MAX_PROBED_RANKS:
        return False
    part = trial_array(communicator, PROBE_NBYTES // 4)
    whole = trial_array(communicator, part.size * communicator.world_size)
    took_s = _time(communicator, partial(communicator.all_gather, part, whole, algorithm="ring"))
    schedule = priced_schedule("all_gather", "ring", communicator.world_size, None)
    predicted_s = price(schedule, whole.nbytes, links).makespan_s
    if took_s < (DISTURBED_BUSY if busy else DISTURBED) * predicted_s:
        log.info("the links are measured anew: a call took %.3g s, expected %.3g s by the cache", took_s, predicted_s)
        return True
    return False


def measure_links(communicator: TrialGroup) -> MeasuredLinks:
    """What the links of the group cost, the same on all ranks. A collective call.

    Where ranks share nodes, those of each node measure at once, then the first ranks of the nodes among themselves.
    These exchange messages once more, alone and at the same time as those in the other places of the nodes: by what
    that takes longer they share their node's NIC.
    """
    nodes = nodes_of(communicator.hosts)
    if len(nodes) in (1, communicator.world_size):
        model = measure_model(communicator)
        slowdown = measure_slowdowns(communicator, model) if len(nodes) > 1 else ()
        return MeasuredLinks(model, slowdown=slowdown)
    node = next(number for number, ranks in enumerate(nodes) if communicator.rank in ranks)
    place = nodes[node].index(communicator.rank)
    inside = nic = None
    shared, slowdown = True, ()
    with communicator.split(node) as here:
        if here.world_size > 1:
            inside = measure_model(here)
    with communicator.split(place) as rail:
        communicator.barrier(algorithm="dissemination")
        if place == 0:
            nic = measure_model(rail)
            slowdown = measure_slowdowns(rail, nic)
        load = _load_together(nodes)
        communicator.barrier(algorithm="dissemination")
        if load > 1:
            part = trial_array(rail, SHARING_NBYTES // 4)
            call = partial(rail.all_gather, part, trial_array(rail, part.size * rail.world_size), algorithm="ring")
            rows = [partial(_repeat, each, SHARING_CALLS) for each in (call if place == 0 else _nothing, call)]
            alone_s, together_s = time_calls(communicator, rows, REPEATS).min(axis=0)
            shared = bool(together_s > alone_s * (1 + load) / 2)
    # Rank 0 is one of the first ranks; the largest node has an inside.
    largest = max(nodes, key=len)
    nic, shared, slowdown = _told(communicator, 0, (nic, shared, slowdown))
    inside = _told(communicator, largest[0], inside)
    return MeasuredLinks(nic, inside, shared, tuple(slowdown))


def _nothing() -> None:
    """What ranks do that are not measured."""


def _rails(nodes: Nodes) -> list[list[int]]:
    """The ranks in each place of their nodes."""
    return [[ranks[place] for ranks in nodes if place < len(ranks)] for place in range(max(map(len, nodes)))]


def _load_together(nodes: Nodes) -> float:
    """How many times as much the busiest node sends while rings of all places run as while the first ones alone do."""
    rings = _rails(nodes)
    sent = [sum(len(ring) - 1 for ring in rings[: len(ranks)]) for ranks in nodes]
    return max(sent) / (len(nodes) - 1)


def _told(communicator: TrialGroup, root: int, value: Any) -> Any:
    """`value` of rank `root`, a CostModel or a tuple that begins with one, on all ranks."""
    buffer = np.zeros(MAX_FILE_NBYTES, np.uint8)
    if communicator.rank == root:
        model, *rest = value if isinstance(value, tuple) and not isinstance(value, CostModel) else (value,)
        text = json.dumps([model.__dict__, *rest]).encode()
        buffer[: len(text)] = np.frombuffer(text, np.uint8)
    communicator.broadcast(buffer, root=root, algorithm="binomial")
    model, *rest = json.loads(buffer.tobytes().rstrip(b"\0"))
    return (CostModel(**model), *rest) if rest else CostModel(**model)


def measure_model(communicator: TrialGroup) -> CostModel:
    """The CostModel fitted to the rounds of our own ring, the same on all ranks. A collective call.

    All ranks run at once, so that what a message costs the executor, and what sharing cores and links costs, is in it.
    """
    world_size = communicator.world_size
    fitting = [nbytes for nbytes in MESSAGE_NBYTES if nbytes * world_size <= MAX_BUFFER_NBYTES]
    sizes: list[int] = []
    rounds_s: list[float] = []
    for nbytes in fitting or MESSAGE_NBYTES[:1]:
        sizes.append(nbytes)
        rounds_s.append(_ring_round_s(communicator, nbytes))
        if rounds_s[-1] * (world_size - 1) > ENOUGH_S:
            break
    # What adding costs shows in long messages; the longest take long.
    at = len(sizes) - 1 - (len(sizes) > 1 and _is_one_host(communicator))
    adding_s = max(0.0, (_ring_round_s(communicator, sizes[at], adds=True) - rounds_s[at]) / sizes[at])
    tiny, out = trial_array(communicator, 16), trial_array(communicator, 16 * world_size)
    spread_s = _time(communicator, lambda: communicator.all_gather(tiny, out, algorithm="allpairs"))
    # Nearer, in ratio, to one message after the other than to all at once?
    serial = world_size > 2 and spread_s > rounds_s[0] * (world_size - 1) ** 0.5
    return fit(sizes, rounds_s, adding_s, serial_messages=serial)


def _ring_round_s(communicator: TrialGroup, nbytes: int, *, adds: bool = False) -> float:
    """Seconds of a round of our ring with messages of `nbytes`: of all_gather, or of reduce_scatter, which `adds`."""
    others = communicator.world_size - 1
    part = trial_array(communicator, nbytes // 4)
    whole = trial_array(communicator, part.size * communicator.world_size)
    call = partial(communicator.all_gather, part, whole, algorithm="ring")
    if adds:
        call = partial(communicator.reduce_scatter, whole, part, algorithm="ring")
    return _time(communicator, call, int(min(MAX_AT_ONCE, -(-AT_ONCE_NBYTES // (nbytes * others))))) / others


def _time(communicator: TrialGroup, call: Call, calls: int = 1) -> float:
    """Seconds of one of `calls` calls in a row on the slowest rank: the least of a few, some being disturbed."""
    on_host, over_network = (
        (HOST_REPEATS, HOST_S, HOST_PAUSE_S),
        (REPEATS, MEASURE_S, PAUSE_S),
    )
    limits = on_host if _is_one_host(communicator) else over_network
    return float(time_calls(communicator, [partial(_repeat, call, calls)], *limits).min()) / calls


def _is_one_host(communicator: TrialGroup) -> bool:
    return len(set(communicator.hosts)) == 1


def _repeat(call: Call, times: int) -> None:
    for _ in range(times):
        call()


def fit(
    sizes: Sequence[int], times_s: Sequence[float], gamma_s_per_byte: float = 0.0, *, serial_messages: bool = False
) -> CostModel:
    """The CostModel of messages of `sizes` bytes that took `times_s`: a line, or pieces.

    Pieces where it misses one of them by more than MISFIT. The line is fitted by relative error, so that small
    messages count as much as large ones. Sizes ascend: what took longer than a larger one was disturbed, and counts as
    that.
    """
    x, y = np.array(sizes, float), np.minimum.accumulate(times_s[::-1])[::-1]
    design = np.stack([1 / y, x / y], axis=1)
    (alpha, beta), *_ = np.linalg.lstsq(design, np.ones(len(x)), rcond=None)
    misses = np.abs(alpha + beta * x - y) / y
    if alpha >= 0 and beta >= 0 and misses.max() <= MISFIT:
        return CostModel(float(alpha), float(beta), gamma_s_per_byte, serial_messages=serial_messages)
    pieces = []
    for i in range(len(x) - 1):
        slope = max(0.0, (y[i + 1] - y[i]) / (x[i + 1] - x[i]))
        start_s = y[i] - slope * x[i]
        if start_s < 0:  # worse than proportional here: a cost per byte alone comes nearest
            slope, start_s = y[i] / x[i], 0.0
        pieces.append(Piece(float(x[i]), float(start_s), float(slope)))
    return CostModel(float(y[0]), 0.0, gamma_s_per_byte, tuple(pieces), serial_messages)


def _tries() -> bool:
    return os.environ.get("LANTERNE_TRIALS") != "off"


# -- the cache


def _cache_file(communicator: TrialGroup) -> Path | None:
    """Where the model of this group is kept, or None."""
    if (base := cache_folder()) is None:
        return None
    transport = communicator.transport
    about = [__version__, transport.name, communicator.ranks, os.uname().nodename, len(os.sched_getaffinity(0))]
    about += [*communicator.hosts, *([] if _tries() else ["without trials"])]
    digest = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]
    return base / f"model-{transport.name}-{communicator.world_size}-{digest}.json"


def _read(file: Path) -> tuple[bytes, bool]:
    """(text of a cache file, whether it was not written lately); no text if it is of no use any more."""
    try:
        text, written_s = file.read_bytes(), file.stat().st_mtime
    except OSError:
        return b"", True
    known = _parse(text) if len(text) <= MAX_FILE_NBYTES else None
    if known is None or abs(time.time() - known[0]) > MAX_AGE_S:
        return b"", True
    return text, abs(time.time() - written_s) > AGAIN_AFTER_S


def _write(file: Path, measured_s: float, measured: MeasuredLinks, factors: Sequence[Factor]) -> None:
    inside = None if measured.inside is None else measured.inside.__dict__
    links: dict[str, Any] = {"model": measured.model.__dict__, "inside": inside}
    links |= {"shared": measured.shared, "slowdown": measured.slowdown, "busy": measured.busy}
    document = {"schema_version": SCHEMA_VERSION, "measured_s": measured_s, **links, "factors": factors}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(document))
        temporary.replace(file)
    except OSError as error:
        log.info("cannot keep the cost model in %s: %s", file, error)


def _parse(text: bytes) -> tuple[float, MeasuredLinks, tuple[Factor, ...]] | None:
    """(time.time() when it was measured, MeasuredLinks, tuple of Factor) that a cache file holds.

    None if it is empty, broken or of another version.
    """
    try:
        document = json.loads(text)
        if document["schema_version"] != SCHEMA_VERSION:
            return None
        factors = tuple(Factor(str(a), str(b), int(c), float(d)) for a, b, c, d in document["factors"])
        if not all(row.nbytes > 0 and 0 < row.factor < float("inf") for row in factors):
            return None
        slowdown = tuple(map(float, document["slowdown"]))
        if not all(1 <= factor < float("inf") for factor in slowdown):
            return None
        inside = None if document["inside"] is None else CostModel(**document["inside"])
        model, shared, busy = CostModel(**document["model"]), bool(document["shared"]), bool(document["busy"])
        measured = MeasuredLinks(model, inside, shared, slowdown, busy)
        return float(document["measured_s"]), measured, factors
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
