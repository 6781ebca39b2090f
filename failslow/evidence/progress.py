"""Progress of ranks in a group's calls, and the rule that names the ranks that others wait for.

The calls of a group are numbered alike on all its ranks. A rank's `Progress` is two numbers: the last call that it has
finished and the last that it has begun. The oldest call that a rank is in is the group's `Stall`:

- a rank that has not begun it is missing: all that have begun it wait;
- if all have begun it and their calls differ, the odd ones are in another call, or all of them where no call has a
  majority;
- if all have begun it and some have finished it, those that have not are held inside it. A call with a root is an
  exception: its root may leave before the others arrive.

A rank that is behind in one group may itself wait in another one, so `roots` follows the waits to their ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Progress(NamedTuple):
    """Numbers of the last call that a rank has finished and of the last that it has begun."""

    finished: int
    begun: int


@dataclass(frozen=True)
class Stall:
    """The oldest call of a group that a rank is in.

    Attributes: `number`; `kind`: "missing", "order", "inside", or "call" where no rank can be named; `behind`: the
    ranks named; `waiting`: the others that have begun it and not finished it; `is_tie`: no majority tells which call
    is the wrong one.
    """

    number: int
    kind: str
    behind: tuple[int, ...]
    waiting: tuple[int, ...]
    is_tie: bool = False


def stall(ranks: Mapping[int, Progress], calls: Mapping[int, Hashable], is_rooted: bool = False) -> Stall | None:
    """Return the Stall of a group; None where no rank is inside a call.

    Args:
        ranks: the Progress of each rank of the group.
        calls: what each rank called as `oldest_call`, as far as known.
        is_rooted: the oldest call that a rank is in has a root.
    """
    inside = [rank for rank, one in ranks.items() if one.begun > one.finished]
    if not inside:
        return None
    number = oldest_call(ranks)
    missing = tuple(sorted(rank for rank, one in ranks.items() if one.begun < number))
    if not missing:
        # Ranks that have finished it are past it.
        held = sorted(rank for rank, one in ranks.items() if one.finished < number)
        odd, is_tie = odd_calls({rank: call for rank, call in calls.items() if rank in ranks})
        if odd:
            return Stall(number, "order", tuple(odd), tuple(r for r in held if r not in odd), is_tie)
        if len(held) < len(ranks) and not is_rooted:
            return Stall(number, "inside", tuple(held), tuple(sorted(set(inside) - set(held))))
        return Stall(number, "call", (), tuple(held))
    return Stall(number, "missing", missing, tuple(sorted(inside)))


def oldest_call(ranks: Mapping[int, Progress]) -> int:
    """Return the number of the oldest call that a rank is in, 0 where none is."""
    return min((one.finished + 1 for one in ranks.values() if one.begun > one.finished), default=0)


def odd_calls(calls: Mapping[int, Hashable]) -> tuple[list[int], bool]:
    """Return the ranks whose call differs from that of the majority, and whether there is no majority.

    Without one all ranks are returned.
    """
    counts = Counter(calls.values()).most_common()
    if len(counts) < 2:
        return [], False
    is_tie = 2 * counts[0][1] <= len(calls)
    return sorted(rank for rank, call in calls.items() if is_tie or call != counts[0][0]), is_tie


def roots(behind: Iterable[int], waits: Mapping[int, Collection[int]]) -> set[int]:
    """Return the ranks of `behind` at which the chains of waits end; of a circle, all of its ranks.

    Args:
        waits: rank -> the ranks that it waits for.
    """
    reached = {rank: _reached(rank, waits) for rank in behind}
    return {rank for rank, ahead in reached.items() if all(rank in reached[one] for one in ahead & reached.keys())}


def _reached(rank: int, waits: Mapping[int, Collection[int]]) -> set[int]:
    """Return the ranks that `rank` waits for, directly or through others."""
    seen: set[int] = set()
    todo = [rank]
    while todo:
        ahead = set(waits.get(todo.pop(), ())) - seen
        seen |= ahead
        todo += ahead
    return seen
