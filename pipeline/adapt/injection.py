"""Slow links and slow ranks on purpose, by iteration: what a test, a benchmark or a demonstration replays.

A trace is a list of Events; at any iteration the conditions are those of all events that hold then. What measures
(profile.py, findings.py) never reads them.
"""

import time
from dataclasses import dataclass, replace
from math import inf

from lanterne.errors import InputError
from lanterne.kernels.cpu.delay import wait_until
from lanterne.pipeline.execute.stage import Stage
from lanterne.pipeline.plan.fields import as_number, check_keys
from lanterne.transport.shaped import Link

# Ranks that share cores leave them to each other: a stage that is slow on purpose polls only so long before its time.
SPIN_S = 100e-6


@dataclass(frozen=True)
class InjectedEvent:
    """Something that is slow from iteration `first` until before iteration `last`.

    Attributes:
        links: link i is between ranks i and i + 1, link (a, b) between any two ranks; both ways.
        latency_s: added to the links'.
        bandwidth_bytes_per_s: at most that of the links; None: as it is.
        rank, slowdown: every action of this rank takes this many times as long; rank None: no rank is slow.
        down: of `links`, whether the usual path is dead: only delegates get messages through.
    """

    first: int
    last: float = inf
    links: tuple = ()
    latency_s: float = 0.0
    bandwidth_bytes_per_s: float | None = None
    rank: int | None = None
    slowdown: float = 1.0
    down: bool = False

    def __post_init__(self):
        if not 0 <= self.first < self.last:
            raise InputError(f"event: got iterations {self.first} to {self.last:g}, expected the first before the last")
        if (self.rank is None) == (not self.links):
            raise InputError("event: got neither or both of links and rank, expected one of them")
        if self.rank is not None and not self.slowdown >= 1:
            raise InputError(f"event: got a slowdown of {self.slowdown:g}, expected at least 1")
        if self.links and not (self.latency_s or self.bandwidth_bytes_per_s or self.down):
            raise InputError(f"event: got links {list(self.links)} alone, expected a latency, a bandwidth or down")
        Link(self.latency_s, self.bandwidth_bytes_per_s)

    def holds(self, iteration):
        """Whether it is so in `iteration`."""
        return self.first <= iteration < self.last

    @classmethod
    def from_dict(cls, document):
        """The event of an object with keys as the attributes above; `first` is needed, `last` may be missing or null.

        Raises:
            InputError: a key is missing or misspelt, or a value cannot be.
        """
        names = tuple(cls.__dataclass_fields__)
        check_keys("event", document, names, ("first",))
        given = {key: document[key] for key in names if key == "first" or document.get(key) is not None}
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
        links = tuple(link if type(link) is int else tuple(link) for link in links)
        return cls(**given | {"links": links})

    def to_dict(self):
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


def _is_link(link):
    numbers = [link, link] if type(link) is int else link
    return isinstance(numbers, list | tuple) and len(numbers) == 2 and all(type(n) is int and n >= 0 for n in numbers)


def ends(link):
    """The two ranks of one of an InjectedEvent's links."""
    return (link, link + 1) if type(link) is int else tuple(link)


def check_events(events, num_ranks):
    """Raise InputError if an event is about a link or a rank that a pipeline of `num_ranks` has not."""
    for event in events:
        if event.rank is not None and event.rank >= num_ranks:
            raise InputError(f"event: got rank {event.rank}, expected 0 to {num_ranks - 1}")
        for link in event.links:
            if type(link) is int and link >= num_ranks - 1:
                raise InputError(
                    f"event: got link {link}, expected 0 to {num_ranks - 2}, link I being between ranks I and I+1"
                )
            if len(set(ends(link))) != 2 or max(ends(link)) >= num_ranks:
                one, other = ends(link)
                raise InputError(f"event: got link {one}-{other}, expected two different ranks, 0 to {num_ranks - 1}")


def conditions(events, iteration, usual=None):
    """What holds in `iteration`: ({(source, destination): Link}, {rank: slowdown}, pairs whose path is down).

    Args:
        usual: {(source, destination): Link} without events; pairs that are absent delay nothing.
    """
    links, slowdowns, down = {}, {}, set()
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


def _slowed(link, event):
    rates = [rate for rate in (link.bandwidth_bytes_per_s, event.bandwidth_bytes_per_s) if rate is not None]
    return replace(link, latency_s=link.latency_s + event.latency_s, bandwidth_bytes_per_s=min(rates, default=None))


class Replay:
    """Makes events come true on one rank of a pipeline, over emulated links.

    Args:
        events: of the whole run.
        plane: the DataPlane whose links change.
        rank: this rank of the pipeline.
        stages: stage -> Stage of this rank; run `stages` of this object instead.
        usual: as for `conditions`.
    """

    def __init__(self, events, plane, rank, stages, usual=None):
        self.events, self.plane, self.rank, self.usual = tuple(events), plane, rank, usual or {}
        self.stages = {number: SlowStage(stage) for number, stage in stages.items()}
        self._links = {}

    def begin(self, iteration):
        """Set the conditions of `iteration`, which is about to begin; every rank calls it. Returns the pairs down."""
        links, slowdowns, down = conditions(self.events, iteration, self.usual)
        for pair in {**self._links, **links}:
            wanted = links.get(pair, self.usual.get(pair, Link()))
            if self._links.get(pair, self.usual.get(pair, Link())) != wanted:
                self.plane.set_link(*pair, wanted)
        self._links = links
        for stage in self.stages.values():
            stage.slowdown = slowdowns.get(self.rank, 1.0)
        return down


class SlowStage(Stage):
    """A stage each of whose actions takes `slowdown` times as long as it would; else as `stage`.

    Args:
        pace_s: what an action takes at least, before that: ranks that share cores then compute as if they did not.
    """

    def __init__(self, stage, pace_s=0.0):
        self.stage, self.slowdown, self.pace_s = stage, 1.0, pace_s

    input_shape = property(lambda self: self.stage.input_shape)
    output_shape = property(lambda self: self.stage.output_shape)
    dtype = property(lambda self: self.stage.dtype)
    losses = property(lambda self: self.stage.losses)
    nbytes_held = property(lambda self: self.stage.nbytes_held)

    def begin(self, microbatches, inputs=None, targets=None):
        self.stage.begin(microbatches, inputs, targets)

    def forward(self, microbatch, x=None, out=None, part=1, parts=1):
        return self._slowly(self.stage.forward, microbatch, x, out, part, parts)

    def backward_input(self, microbatch, dy=None, out=None, part=1, parts=1):
        return self._slowly(self.stage.backward_input, microbatch, dy, out, part, parts)

    def backward_weight(self, microbatch, part=1, parts=1):
        return self._slowly(self.stage.backward_weight, microbatch, part, parts)

    def step(self):
        self.stage.step()

    def waited(self):
        self.stage.waited()

    def _slowly(self, work, *args):
        began_s = time.monotonic()
        result = work(*args)
        took_s = time.monotonic() - began_s
        if self.slowdown > 1 or took_s < self.pace_s:
            wait_until(began_s + self.slowdown * max(took_s, self.pace_s), SPIN_S)
            self.stage.waited()  # A timed stage would else make up for it.
        return result
