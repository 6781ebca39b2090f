"""What a seed stands for: ranks, the calls that they make, and the events that befall them. Data, to and from JSON."""

import json
import random
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lanterne.errors import InputError, one_of

# Of what a seed stands for: one that was found with another version stands for something else now.
VERSION = 3
# Of the dice: what is not named below is drawn as by the version before.
DICE = 2
# Communicators over tcp, over tcp with spare rails, or local; ranks with delegates; ranks that use the store only.
TRANSPORTS = ("tcp", "spare", "local", "delegates", "store")
DRAWN_TRANSPORTS = ("local", "tcp", "tcp", "tcp", "spare", "delegates", "store", "store")
RANKS = 4, 8
CALLS = 2, 5
# By kind of call, how many of 100.
CALL_SHARES = {
    "all_reduce ring": 16,
    "all_reduce rhd": 10,
    "all_reduce tree": 8,
    "all_reduce allpairs": 8,
    "all_gather": 8,
    "reduce_scatter": 8,
    "broadcast": 6,
    "barrier": 8,
    "started": 6,
    "background": 8,
    "neighbours": 4,
    "mail": 4,
    "board": 4,
    "seats": 4,
}
# Of ranks that use the store.
SERVICE_SHARES = {
    "values": 12,
    "waited": 10,
    "added": 8,
    "exchange": 10,
    "meet": 8,
    "refusals": 8,
    "strangers": 8,
    "seats": 24,
    "guards": 16,
    "end": 8,
}
COUNTS = (1, 2, 7, 64, 500, 3000)
# Of ranks with delegates.
DELEGATE_SHARES = {"ring": 40, "everybody": 30, "ahead": 30}
# Events at most, and what each does, with the seconds drawn between. Those of FALLS end somebody for the others.
MOST_EVENTS = 4
EVENTS: dict[str, tuple[str, tuple[float, float]]] = {
    "kill": ("the process ends at once", (0.0, 0.0)),
    "restart": ("the process ends, and one that says it were the same comes", (0.0, 2.0)),
    "freeze": ("the process does not run, for longer than others wait", (20.0, 60.0)),
    "partition": ("nothing passes between two processes, for longer than TCP waits", (8.0, 60.0)),
    "stop": ("the process does not run for a while", (0.001, 2.0)),
    "cut": ("nothing passes between two processes for a while", (0.001, 2.5)),
    "loss": ("the next packet is lost, and sent again", (0.2, 0.6)),
    "reset": ("a connection between two ranks is reset, and others take over", (0.0, 1.0)),
    "path": ("the first path between two ranks goes silent, or is reset, and rails take over", (0.0, 1.0)),
    "delegate": ("the delegate of a rank is killed", (0.0, 0.0)),
    "quit": ("the program ends in order before it has joined the job", (0.0, 0.0)),
}
FALLS = ("kill", "restart", "freeze", "partition", "quit", "delegate")
_PROCESS = "kill", "restart", "freeze", "partition", "stop", "cut", "loss"
# What can befall ranks over a transport.
EVENTS_OF = {
    "tcp": _PROCESS,
    "spare": (*_PROCESS, "reset", "path"),
    "local": ("kill", "stop"),
    "delegates": ("kill", "freeze", "stop", "reset", "reset", "loss", "delegate"),
    "store": (*_PROCESS, "quit"),
}
# Those between two processes, of which one may be the store; and between two ranks.
BETWEEN, BETWEEN_RANKS = ("cut", "partition", "reset", "path"), ("reset", "path")
# Those that may be of one direction, and how often they are.
ONE_WAY, ONE_WAY_PART = ("cut", "partition"), 0.4
# So often no rank joins its job at all.
NOBODY = 0.03
# The step of a process at which an event comes, up to this, small ones more often.
STEPS, STORE_STEPS = 1500, 400
STORE = -1


@dataclass(frozen=True)
class Event:
    """`kind` of EVENTS befalls `rank` at its step `step`, for `seconds`; with `other`, a rank or STORE, where two are.

    With `one_way` a path is cut from `rank` to `other` only.
    `seconds` of a reset or path says which, of 1. Over local a kill is an exception in the program of the rank, before
    its call `step`, counted around.
    """

    kind: str
    rank: int
    step: int
    seconds: float = 0.0
    other: int = STORE
    one_way: bool = False

    def __str__(self) -> str:
        between = "" if self.kind not in BETWEEN else f" {'to' if self.one_way else 'from'} {name_of(self.other)}"
        lasting = f" for {self.seconds:.3g} s" if self.seconds else ""
        return f"{self.kind} of rank {self.rank}{between} at its step {self.step}{lasting}"


@dataclass(frozen=True)
class Scenario:
    """Everything that is decided before the world begins; the order of what happens in it comes from `seed`, too.

    Attributes: `calls`, (kind of `shares_of` the transport, count of elements), the same on all ranks.
    """

    seed: int
    transport: str
    ranks: int
    calls: tuple[tuple[str, int], ...]
    events: tuple[Event, ...]

    def has(self, kind: str) -> bool:
        """Whether a call of it is of that kind."""
        return any(kind == each for each, _ in self.calls)

    def to_json(self) -> dict[str, Any]:
        """A document that `from_json` reads."""
        return {"schema_version": 1, "simulation_version": VERSION, **asdict(self)}


def name_of(rank: int) -> str:
    """The process of a rank, or the store."""
    return "store" if rank == STORE else f"rank {rank}"


def draw(seed: int, transport: str | None = None) -> Scenario:
    """The Scenario of a seed. Half of those of tcp have an event of FALLS, a quarter none at all.

    Args:
        transport: None: drawn, one in four is local.
    """
    rng, ways = random.Random(f"lanterne {DICE} {seed}"), random.Random(f"the ways of {seed}")
    drawn = rng.choice(DRAWN_TRANSPORTS)
    transport = transport or drawn
    ranks = rng.randint(*RANKS)
    shares = shares_of(transport)
    kinds = rng.choices(list(shares), list(shares.values()), k=rng.randint(*CALLS))
    calls = tuple((kind, rng.choice(COUNTS)) for kind in kinds)
    possible = EVENTS_OF[transport]
    falls = [kind for kind in possible if kind in FALLS]
    harmless = [kind for kind in possible if kind not in FALLS]
    chosen = [rng.choice(falls)] if rng.random() < 0.5 else []
    if rng.random() < 0.5:
        chosen += rng.choices(possible if chosen else harmless, k=rng.randint(1, MOST_EVENTS - 1))
    events = []
    for kind in chosen:
        rank = rng.randrange(ranks)
        peers = [peer for peer in range(ranks) if peer != rank]
        other = rng.choice(peers if kind in BETWEEN_RANKS else [STORE, *peers])
        step = round((STORE_STEPS if transport == "store" else STEPS) ** rng.random())
        one_way = kind in ONE_WAY and ways.random() < ONE_WAY_PART
        events.append(Event(kind, rank, step, round(rng.uniform(*EVENTS[kind][1]), 4), other, one_way))
    if transport == "store" and rng.random() < NOBODY:
        events = [Event("quit", rank, 1) for rank in range(ranks)]
    return Scenario(seed, transport, ranks, calls, tuple(events))


def shares_of(transport: str) -> dict[str, int]:
    """By kind of call that ranks make over `transport`, how many of 100."""
    return {"store": SERVICE_SHARES, "delegates": DELEGATE_SHARES}.get(transport, CALL_SHARES)


def from_json(document: Any, where: str) -> Scenario:
    """The Scenario that `to_json` wrote.

    Raises:
        InputError: it is of another version, or has what cannot be; names `where` it came from.
    """
    if not isinstance(document, dict) or "simulation_version" not in document:
        raise InputError(f"{where}: got no seed file, expected one that `./run evaluate simulate --out` wrote")
    if document["simulation_version"] != VERSION:
        raise InputError(f"{where}: got a seed of version {document['simulation_version']}, expected {VERSION}")
    try:
        calls = tuple((str(kind), int(count)) for kind, count in document["calls"])
        events = tuple(_event(**event) for event in document["events"])
        found = Scenario(int(document["seed"]), document["transport"], int(document["ranks"]), calls, events)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{where}: got what is no scenario: {error}") from error
    check(found, where)
    return found


def _event(kind: str, rank: int, step: int, seconds: float = 0.0, other: int = STORE, one_way: bool = False) -> Event:
    return Event(str(kind), int(rank), int(step), float(seconds), int(other), bool(one_way))


def check(scenario: Scenario, where: str) -> None:
    """Raise InputError if something in `scenario` cannot be."""
    if scenario.transport not in TRANSPORTS:
        raise InputError(f"{where}: transport: {one_of(scenario.transport, TRANSPORTS)}")
    if not 2 <= scenario.ranks <= 64:
        raise InputError(f"{where}: got {scenario.ranks} ranks, expected 2 to 64")
    for kind, count in scenario.calls:
        if kind not in shares_of(scenario.transport):
            raise InputError(f"{where}: call: {one_of(kind, shares_of(scenario.transport))}")
        if not 1 <= count <= 1 << 20:
            raise InputError(f"{where}: got a call of {count} elements, expected 1 to {1 << 20}")
    for event in scenario.events:
        if event.kind not in EVENTS_OF[scenario.transport]:
            known = EVENTS_OF[scenario.transport]
            raise InputError(f"{where}: event of {scenario.transport}: {one_of(event.kind, known)}")
        if not 0 <= event.rank < scenario.ranks or not STORE <= event.other < scenario.ranks or event.step < 1:
            raise InputError(f"{where}: got the event {event}, expected ranks of {scenario.ranks} and steps from 1")
        if event.one_way and event.kind not in ONE_WAY:
            raise InputError(f"{where}: got the event {event}, one way, expected one of {', '.join(ONE_WAY)}")
        if event.kind in BETWEEN and event.other == event.rank:
            raise InputError(f"{where}: got the event {event}, expected two processes")
        if event.seconds < 0:
            raise InputError(f"{where}: got the event {event}, which lasts {event.seconds:g} s, expected 0 or more")


def read(text: str) -> Scenario:
    """The Scenario that a user names: by a number, or by a file.

    Raises:
        InputError: it is neither.
    """
    if text.isascii() and text.isdigit():
        return draw(int(text))
    try:
        document = json.loads(Path(text).read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"seed: got {text!r}, expected a number or a seed file ({error})") from error
    return from_json(document, text)


def without(scenario: Scenario, events: tuple[Event, ...], calls: tuple[tuple[str, int], ...]) -> Scenario:
    """`scenario` with other events and calls."""
    return replace(scenario, events=events, calls=calls)
