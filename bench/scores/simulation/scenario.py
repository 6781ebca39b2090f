"""What a seed stands for: ranks, the calls that they make, and the events that befall them. Data, to and from JSON."""

import json
import random
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lanterne.errors import InputError, one_of

# Of what a seed stands for: one that was found with another version stands for something else now.
VERSION = 1
TRANSPORTS = ("tcp", "local")
RANKS = 4, 8
CALLS = 2, 5
# By kind of call, how many of 100.
CALL_SHARES = {
    "all_reduce ring": 20,
    "all_reduce rhd": 10,
    "all_reduce tree": 8,
    "all_reduce allpairs": 8,
    "all_gather": 8,
    "reduce_scatter": 8,
    "broadcast": 10,
    "barrier": 8,
    "started": 10,
    "neighbours": 6,
    "board": 4,
}
COUNTS = (1, 2, 7, 64, 500, 3000)
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
}
FALLS = ("kill", "restart", "freeze", "partition")
LOCAL_EVENTS = ("kill", "stop")
# The step of a process at which an event comes, drawn between, small ones more often.
STEPS = 1, 1500
STORE = -1


@dataclass(frozen=True)
class Event:
    """`kind` of EVENTS befalls `rank` at its step `step`, for `seconds`; with `other`, a rank or STORE, where two are.

    Over local a kill is an exception in the program of the rank, before its call `step`, counted around.
    """

    kind: str
    rank: int
    step: int
    seconds: float = 0.0
    other: int = STORE

    def __str__(self) -> str:
        between = "" if self.kind not in ("cut", "partition") else f" from {name_of(self.other)}"
        lasting = f" for {self.seconds:.3g} s" if self.seconds else ""
        return f"{self.kind} of rank {self.rank}{between} at its step {self.step}{lasting}"


@dataclass(frozen=True)
class Scenario:
    """Everything that is decided before the world begins; the order of what happens in it comes from `seed`, too.

    Attributes: `calls`, (kind of CALL_SHARES, count of elements), the same on all ranks.
    """

    seed: int
    transport: str
    ranks: int
    calls: tuple[tuple[str, int], ...]
    events: tuple[Event, ...]

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
    rng = random.Random(f"lanterne {VERSION} {seed}")
    drawn = rng.choice(("local", "tcp", "tcp", "tcp"))
    transport = transport or drawn
    ranks = rng.randint(*RANKS)
    kinds = rng.choices(list(CALL_SHARES), list(CALL_SHARES.values()), k=rng.randint(*CALLS))
    calls = tuple((kind, rng.choice(COUNTS)) for kind in kinds)
    possible = [kind for kind in EVENTS if transport == "tcp" or kind in LOCAL_EVENTS]
    falls = [kind for kind in possible if kind in FALLS]
    harmless = [kind for kind in possible if kind not in FALLS]
    chosen = [rng.choice(falls)] if rng.random() < 0.5 else []
    if rng.random() < 0.5:
        chosen += rng.choices(possible if chosen else harmless, k=rng.randint(1, MOST_EVENTS - 1))
    events = []
    for kind in chosen:
        rank = rng.randrange(ranks)
        other = rng.choice([STORE, *(peer for peer in range(ranks) if peer != rank)])
        step = round(STEPS[0] * (STEPS[1] / STEPS[0]) ** rng.random())
        events.append(Event(kind, rank, step, round(rng.uniform(*EVENTS[kind][1]), 4), other))
    return Scenario(seed, transport, ranks, calls, tuple(events))


def from_json(document: Any, where: str) -> Scenario:
    """The Scenario that `to_json` wrote.

    Raises:
        InputError: it is of another version, or has what cannot be; names `where` it came from.
    """
    if not isinstance(document, dict) or "simulation_version" not in document:
        raise InputError(f"{where}: got no seed file, expected one that `lanterne simulate --out` wrote")
    if document["simulation_version"] != VERSION:
        raise InputError(f"{where}: got a seed of version {document['simulation_version']}, expected {VERSION}")
    try:
        calls = tuple((str(kind), int(count)) for kind, count in document["calls"])
        events = tuple(Event(**event) for event in document["events"])
        found = Scenario(int(document["seed"]), document["transport"], int(document["ranks"]), calls, events)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{where}: got what is no scenario: {error}") from error
    check(found, where)
    return found


def check(scenario: Scenario, where: str) -> None:
    """Raise InputError if something in `scenario` cannot be."""
    if scenario.transport not in TRANSPORTS:
        raise InputError(f"{where}: transport: {one_of(scenario.transport, TRANSPORTS)}")
    if not 2 <= scenario.ranks <= 64:
        raise InputError(f"{where}: got {scenario.ranks} ranks, expected 2 to 64")
    for kind, count in scenario.calls:
        if kind not in CALL_SHARES:
            raise InputError(f"{where}: call: {one_of(kind, tuple(CALL_SHARES))}")
        if not 1 <= count <= 1 << 20:
            raise InputError(f"{where}: got a call of {count} elements, expected 1 to {1 << 20}")
    for event in scenario.events:
        if event.kind not in EVENTS or (scenario.transport == "local" and event.kind not in LOCAL_EVENTS):
            raise InputError(f"{where}: event of {scenario.transport}: got {event.kind!r}, expected one of EVENTS")
        if not 0 <= event.rank < scenario.ranks or not STORE <= event.other < scenario.ranks or event.step < 1:
            raise InputError(f"{where}: got the event {event}, expected ranks of {scenario.ranks} and steps from 1")


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
