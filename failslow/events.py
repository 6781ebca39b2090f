"""What a detector reports: events (a level changed) and the incidents that they delimit. Rows count from 0."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Event:
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


def incidents(events, merge_rows=12):
    """The incidents that confirmed `events` delimit, in order.

    A new onset within `merge_rows` of a relief belongs to the same incident: noisy incidents come and go. `ratio` is
    that of the onset, then of the highest level since; once it is over, a single level is known from all its rows.
    """
    found, level, changed = [], 1.0, False
    for event in events:
        last = found[-1] if found else None
        is_open = last is not None and last.relief is None
        if event.kind == "onset":
            level, changed = event.ratio, False
            if last is not None and not is_open and event.index - last.relief <= merge_rows:
                found[-1] = replace(last, relief=None, ratio=max(last.ratio, level))
                changed = True
            else:
                found.append(Incident(event.index, None, level, event.confirmed_at))
        elif is_open and event.kind == "relief":
            found[-1] = replace(last, relief=event.index, ratio=last.ratio if changed else 1 / event.ratio)
        elif is_open:
            level, changed = level * event.ratio, True
            found[-1] = replace(last, ratio=max(last.ratio, level))
    return found
