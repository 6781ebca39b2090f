"""Slow links and slow ranks on purpose, by iteration: what a test, a benchmark or a demonstration replays.

A trace is a list of Events; at any iteration the conditions are those of all events that hold then. What measures
(profile.py, findings.py) never reads them.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any, TypeAlias

from lanterne.errors import InputError
from lanterne.kernels.cpu.delay import wait_until
from lanterne.pipeline.adapt.link_delay import Pair
from lanterne.pipeline.adapt.suspect import Suspect
from lanterne.pipeline.execute.stage import Result, Stage, WrappedStage
from lanterne.pipeline.execute.stage_timed import SPIN_S
from lanterne.pipeline.plan.fields import as_number, check_keys
from lanterne.transport.shaped import Link, Links

# Link i is between ranks i and i + 1, link (a, b) between any two ranks.
EventLink: TypeAlias = int | Pair


@dataclass(frozen=True)
class InjectedEvent:
    """Something that is slow from iteration `first` until before iteration `last`.

    Attributes:
        links: those that are slow, both ways.
        latency_s: added to the links'.
        bandwidth_bytes_per_s: at most that of the links; None: as it is.
        rank, slowdown: every action of this rank takes this many times as long; rank None: no rank is slow.
        down: of `links`, whether the usual path is dead: only delegates get messages through.
    """

    first: int
    last: float = inf
    links: tuple[EventLink, ...] = ()
    latency_s: float = 0.0
    bandwidth_bytes_per_s: float | None = None
    rank: int | None = None
    slowdown: float = 1.0
    down: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.last:
            raise InputError(f"event: got iterations {self.first} to {self.last:g}, expected the first before the last")
        if (self.rank is None) == (not self.links):
            raise InputError("event: got neither or both of links and rank, expected one of them")
        if self.rank is not None and not self.slowdown >= 1:
            raise InputError(f"event: got a slowdown of {self.slowdown:g}, expected at least 1")
        if self.links and not (self.latency_s or self.bandwidth_bytes_per_s or self.down):
            raise InputError(f"event: got links {list(self.links)} alone, expected a latency, a bandwidth or down")
        Link(self.latency_s, self.bandwidth_bytes_per_s)

    @property
    def suspect(self) -> Suspect:
        """What is slow: the rank, or the first link."""
        return Suspect.rank(self.rank) if self.rank is not None else Suspect.link(*ends(self.links[0]))

    def holds(self, iteration: int) -> bool:
        """Whether it is so in `iteration`."""
        return self.first <= iteration < self.last

    @classmethod
    def from_dict(cls, document: Any) -> "InjectedEvent":
        """The event of an object with keys as the attributes above; `first` is needed, `last` may be missing or null.

        Raises:
            InputError: a key is missing or misspelt, or a value cannot be.
        """
        names = tuple(cls.__dataclass_fields__)
        check_keys("event", document, names, ("first",))
        given: dict[str, Any] = {key: document[key] for key in names if key == "first" or document.get(key) is not None}
        for key in ("first", "last", "rank"):
            if key in given and (type(given[key]) is not int or given[key] < 0):
                raise InputError(f"event: got {key} {given[key]!r}, expected a whole number of at least 0")
        for key in ("latency_s", "bandwidth_bytes_per_s", "slowdown"):
            if key in given:
                given[key] = as_number(f"event: {key}", given[key])
        if type(given.get("down", False)) is not bool:
            raise InputError(f"event: got down {given['down']!r}, expected true or false")
        links = given.get("links", ())
        if not isinstance(links, list | tuple) or not all(map(_is_link, links)):
            raise InputError(f"event: got links {links!r}, expected a list of whole numbers, or of pairs of them")
        given["links"] = tuple(link if type(link) is int else tuple(link) for link in links)
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        """A JSON object that `from_dict` turns into an equal event."""
        return {
            "first": self.first,
            "last": None if self.last == inf else self.last,
            "links": list(self.links),
            "latency_s": self.latency_s,
            "bandwidth_bytes_per_s": self.bandwidth_bytes_per_s,
            "rank": self.rank,
            "slowdown": self.slowdown,
            "down": self.down,
        }


def _is_link(link: Any) -> bool:
    numbers = [link, link] if type(link) is int else link
    return isinstance(numbers, list | tuple) and len(numbers) == 2 and all(type(n) is int and n >= 0 for n in numbers)


def ends(link: EventLink) -> Pair:
    """The two ranks of one of an InjectedEvent's links."""
    return (link, link + 1) if isinstance(link, int) else link


def renumbered(events: Iterable[InjectedEvent], numbers: Mapping[int, int]) -> tuple[InjectedEvent, ...]:
    """`events` about ranks that have other `numbers` now, by old number, without those about none that is there."""
    made = []
    for event in events:
        pairs = [(numbers[a], numbers[b]) for a, b in map(ends, event.links) if {a, b} <= numbers.keys()]
        if event.rank in numbers or pairs:
            rank = None if event.rank is None else numbers[event.rank]
            made.append(replace(event, rank=rank, links=tuple((min(pair), max(pair)) for pair in pairs)))
    return tuple(made)


def check_events(events: Iterable[InjectedEvent], num_ranks: int) -> None:
    """Raise InputError if an event is about a link or a rank that a pipeline of `num_ranks` has not."""
    for event in events:
        if event.rank is not None and event.rank >= num_ranks:
            raise InputError(f"event: got rank {event.rank}, expected 0 to {num_ranks - 1}")
        for link in event.links:
            if isinstance(link, int) and link >= num_ranks - 1:
                raise InputError(
                    f"event: got link {link}, expected 0 to {num_ranks - 2}, link I being between ranks I and I+1"
                )
            if len(set(ends(link))) != 2 or max(ends(link)) >= num_ranks:
                one, other = ends(link)
                raise InputError(f"event: got link {one}-{other}, expected two different ranks, 0 to {num_ranks - 1}")


def conditions(
    events: Iterable[InjectedEvent], iteration: int, usual: Links | None = None
) -> tuple[dict[Pair, Link], dict[int, float], set[Pair]]:
    """What holds in `iteration`: ({(source, destination): Link}, {rank: slowdown}, pairs whose path is down).

    Args:
        usual: {(source, destination): Link} without events; pairs that are absent delay nothing.
    """
    links: dict[Pair, Link] = {}
    slowdowns: dict[int, float] = {}
    down: set[Pair] = set()
    for event in events:
        if not event.holds(iteration):
            continue
        if event.rank is not None:
            slowdowns[event.rank] = slowdowns.get(event.rank, 1.0) * event.slowdown
        for link in event.links:
            one, other = ends(link)
            if event.down:
                down.add((one, other))
            for pair in ((one, other), (other, one)):
                links[pair] = _slowed(links.get(pair, (usual or {}).get(pair, Link())), event)
    return links, slowdowns, down


def _slowed(link: Link, event: InjectedEvent) -> Link:
    rates = [rate for rate in (link.bandwidth_bytes_per_s, event.bandwidth_bytes_per_s) if rate is not None]
    return replace(link, latency_s=link.latency_s + event.latency_s, bandwidth_bytes_per_s=min(rates, default=None))


class Replay:
    """Makes events come true on one rank, over emulated links.

    Args:
        events: of the whole run, about the ranks that `set_link` counts.
        set_link: changes a link, of the data plane or transport that the work goes over.
        rank: this rank.
        usual: as for `conditions`.
        pace_s: as SlowStage has it.

    Attributes: `slowdown`, of this rank now.
    """

    def __init__(
        self,
        events: Iterable[InjectedEvent],
        set_link: Callable[[int, int, Link], object],
        rank: int,
        usual: Links | None = None,
        pace_s: float = 0.0,
    ) -> None:
        self.events: tuple[InjectedEvent, ...] = tuple(events)
        self.slowdown: float = 1.0
        self._set_link = set_link
        self._rank = rank
        self._usual: Links = usual or {}
        self._pace_s = pace_s
        self._links: dict[Pair, Link] = {}
        self._stages: dict[int, SlowStage] = {}

    def wrap(self, stages: Mapping[int, Stage]) -> "dict[int, SlowStage]":
        """Return what to run in place of `stages`."""
        self._stages = {number: SlowStage(stage, self._pace_s) for number, stage in stages.items()}
        self._slow_down(self.slowdown)
        return self._stages

    def begin(self, iteration: int) -> set[Pair]:
        """Set the conditions of `iteration`, which is about to begin; every rank calls it. Return the pairs down."""
        links, slowdowns, down = conditions(self.events, iteration, self._usual)
        for pair in {**self._links, **links}:
            wanted = links.get(pair, self._usual.get(pair, Link()))
            if self._links.get(pair, self._usual.get(pair, Link())) != wanted:
                self._set_link(*pair, wanted)
        self._links = links
        self._slow_down(slowdowns.get(self._rank, 1.0))
        return down

    def _slow_down(self, slowdown: float) -> None:
        self.slowdown = slowdown
        for stage in self._stages.values():
            stage.slowdown = slowdown


class SlowStage(WrappedStage):
    """Stage each of whose actions takes `slowdown` times as long as that of `inner`.

    Args:
        pace_s: what an action takes at least, before that: ranks that share cores then compute as if they did not.
    """

    def __init__(self, inner: Stage, pace_s: float = 0.0) -> None:
        super().__init__(inner)
        self.slowdown: float = 1.0
        self.pace_s = pace_s

    def around(self, kind: str, work: Callable[..., Result], microbatch: int, *args: Any) -> Result:
        began_s = time.monotonic()
        result = work(microbatch, *args)
        took_s = time.monotonic() - began_s
        if self.slowdown > 1 or took_s < self.pace_s:
            wait_until(began_s + self.slowdown * max(took_s, self.pace_s), SPIN_S)
            self.inner.waited()  # A timed stage would else make up for it.
        return result
