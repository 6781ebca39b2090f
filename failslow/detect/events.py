"""What a detector reports: events (a level changed) and the incidents that they delimit. Rows count from 0."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import exp

from lanterne.failslow.evidence.series import SHIFT

# Level over the healthy one from which a job counts as slow.
STILL_SLOW = 1.04
# A new onset within so many rows of a relief belongs to the same incident.
MERGE_ROWS = 12


@dataclass(frozen=True, slots=True)
class LevelEvent:
    """The level of a series changed.

    Attributes: `kind`: "onset" (slower by 10 % or more), "relief" (back from it) or "change" (another level inside an
    incident, a lasting smaller step, or a faster job); `index`: first row of the new level, as far as known;
    `provisional_at`: row at which it was suspected; `confirmed_at`: row at which it was certain, None while it is not;
    `ratio`: new level over old.
    """

    kind: str
    index: int
    provisional_at: int
    confirmed_at: int | None
    ratio: float


@dataclass(frozen=True, slots=True)
class Incident:
    """A slow spell of rows [onset, relief), `ratio` times the healthy level; `relief` is None while it lasts."""

    onset: int
    relief: int | None
    ratio: float
    confirmed_at: int


def incidents(events: Iterable[LevelEvent], merge_rows: int = MERGE_ROWS) -> list[Incident]:
    """The incidents that confirmed `events` delimit, in order.

    An incident begins with an onset, or with a lasting step of less than 10 %, and ends with the return. A new onset
    within `merge_rows` of a relief belongs to the same incident: noisy incidents come and go. `ratio` is that of the
    first event, then of the highest level since; once it is over, a single level is known from all its rows. A relief
    before any onset ends an incident that began with the job, at row 0; what falls before the first onset does, too.
    """
    found: list[Incident] = []
    level, levels = 1.0, 0
    risen = False
    for event in events:
        last = found[-1] if found else None
        risen = risen or event.ratio > 1.0
        if not risen and event.ratio < exp(-SHIFT) and (found or event.kind == "relief"):
            assert event.confirmed_at is not None
            first = found.pop() if found else Incident(0, None, 1.0, event.confirmed_at)
            found.append(replace(first, relief=event.index, ratio=first.ratio / event.ratio))
            continue
        going_on = last if last is not None and last.relief is None else None
        if event.kind == "relief":
            if going_on:
                ratio = 1 / event.ratio if levels == 1 else going_on.ratio
                found[-1] = replace(going_on, relief=event.index, ratio=ratio)
            level = 1.0
            continue
        # An onset is measured against the healthy level, a change against the level before it.
        level = event.ratio if event.kind == "onset" else level * event.ratio
        if going_on and level < STILL_SLOW:
            found[-1] = replace(going_on, relief=event.index)
        elif last and (last.relief is None or (event.kind == "onset" and event.index - last.relief <= merge_rows)):
            found[-1] = replace(last, relief=None, ratio=max(last.ratio, level))
            levels += 1
        elif level >= STILL_SLOW:
            assert event.confirmed_at is not None
            found.append(Incident(event.index, None, level, event.confirmed_at))
            levels = 1
        elif event.ratio < exp(-SHIFT):
            # A faster job: what is healthy is known anew.
            level = 1.0
    return found


def latest(events: Sequence[LevelEvent], keep: int) -> list[LevelEvent]:
    """The latest of confirmed `events`, at most `keep`: from the first incident on that begins among them.

    So that no incident is cut in two: incidents() finds the later ones as it did. Of an incident that has more events
    than that one onset stands for those left out, at the level that they have led to.
    """
    first = len(events) - keep
    if first <= 0:
        return list(events)
    for at in range(first, len(events)):
        before, event = events[at - 1], events[at]
        if event.kind == "onset" and before.kind == "relief" and event.index - before.index > MERGE_ROWS:
            return list(events[at:])
    for at in range(first + 1, len(events) + 1):
        found = incidents(events[:at])
        if found and found[-1].relief is None:
            return [_begun(found[-1], events[:at]), *events[at:]]
    return list(events[first:])


def _begun(incident: Incident, events: Iterable[LevelEvent]) -> LevelEvent:
    """An onset in place of all `events` of an `incident` that lasts."""
    level = 1.0
    for event in events:
        if event.index >= incident.onset:
            level = event.ratio if event.kind == "onset" else 1.0 if event.kind == "relief" else level * event.ratio
    return LevelEvent("onset", incident.onset, incident.onset, incident.confirmed_at, level)
