"""A training iteration as a list of tasks: computing on ranks, and all-reduces of groups of ranks.

Two streams a rank, as on a GPU: computing and blocking calls follow each other on one, overlapped calls on the other.
An overlapped call starts on a rank when all that was computed there before it is done. Pure: times come from the
function that prices a call.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias


class Compute(NamedTuple):
    """Computing that takes `seconds` on each of `ranks`."""

    ranks: Sequence[int]
    seconds: float


class AllReduce(NamedTuple):
    """An all-reduce of `nbytes` by the ranks of `group`; tensor parallelism waits for it, data parallelism overlaps."""

    group: tuple[int, ...]
    nbytes: int
    overlapped: bool = False


# An all-reduce and when each rank of its group calls, s: when each is done.
CallPrice: TypeAlias = Callable[[AllReduce, list[float]], Sequence[float]]


def iteration_s(tasks: Iterable[Compute | AllReduce], world_size: int, price: CallPrice) -> float:
    """Return when the last rank has computed and sent all, s; `tasks` are in the order in which ranks issue them."""
    computed, sent = [0.0] * world_size, [0.0] * world_size
    for task in tasks:
        if isinstance(task, Compute):
            for rank in task.ranks:
                computed[rank] += task.seconds
            continue
        done = price(task, [max(computed[rank], sent[rank]) for rank in task.group])
        for rank, end in zip(task.group, done, strict=True):
            sent[rank] = end
            if not task.overlapped:
                computed[rank] = end
    return max(*computed, *sent)
