"""Replay of recorded training steps with other durations: how long a step would take if something were different.

Each worker runs its compute operations in the order recorded. A forward waits for the forward of the stage before
(and its transfer), a backward for the backward of the stage after; the step ends when the last worker has ended, for
gradients are reduced over all. The event loop replays all steps and replicas at once: its times are arrays of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from lanterne.pipeline.simulate.event_loop import Operations, Orders, Progress, Times, event_loop

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[np.float64]

# (kind "F" or "B", microbatch, chunk)
Operation: TypeAlias = tuple[str, int, int]
# (boundary: the lower of the stages at its ends, "forward" or "backward")
StageLink: TypeAlias = tuple[int, str]


class _Unkept:
    """A list of times that nobody reads: arrays of all steps take much memory."""

    def __setitem__(self, index: int, value: object) -> None:
        pass


def pipeline_s(
    order: Sequence[Sequence[Operation]],
    compute_s: Sequence[Array],
    transfers_s: Mapping[StageLink, Array] | None = None,
) -> Array:
    """Return the seconds until each worker's last operation ends: (S, D, P).

    Args:
        order: per stage its operations, in the order in which they run.
        compute_s: per stage (S, D, operations) seconds.
        transfers_s: (S, D) seconds of one message; none where absent.

    Raises:
        InputError: the orders wait for each other in a circle.

    Cost: three vector operations of S x D elements per compute operation of a pipeline.
    """
    import numpy as np

    from lanterne.errors import InputError

    stages = len(order)
    chunks = 1 + max(chunk for operations in order for _, _, chunk in operations)
    keys = [(stage, operation) for stage, own in enumerate(order) for operation in own]
    rows = {key: row for row, key in enumerate(keys)}
    count = len(keys)
    source, target = [-1] * count, [-1] * count
    latency: list[Array | float] = [0.0] * count
    for (stage, operation), row in rows.items():
        needed = _needed(stage, operation, stages, chunks)
        if needed in rows:
            first = rows[needed]
            source[row], target[first] = first, row
            link = _link(stage, needed[0], operation[0])
            latency[first] = 0.0 if transfers_s is None or link is None else transfers_s.get(link, 0.0)
    none = [0.0] * count
    operations = Operations(
        lane=[stage for stage, _ in keys],
        source=source,
        target=target,
        first=range(count),
        duration=[durations[:, :, i] for durations in compute_s for i in range(durations.shape[2])],
        link=none,
        occupancy=none,
        latency=latency,
        gather=none,
    )
    stop = np.cumsum([len(own) for own in order]).tolist()
    orders = Orders(range(count), [0, *stop[:-1]], stop)
    at, clock = [0] * stages, [0.0] * stages
    asleep = [False] * stages
    progress = Progress(at, [0] * stages, clock, [0.0] * stages, asleep, [0] * stages, [0] * count, [])
    event_loop(np.maximum)(operations, orders, Times([0.0] * count, _Unkept(), _Unkept()), progress)
    for stage in reversed(range(stages)):
        if at[stage] < stop[stage]:
            waits = order[stage][at[stage] - stop[stage]]
            raise InputError(f"replay: stage {stage}, operation {waits} waits for ever; is the trace whole?")
    shape = compute_s[0].shape[:2]
    return np.stack([np.broadcast_to(ends, shape) for ends in clock], axis=2)


def _needed(stage: int, operation: Operation, stages: int, chunks: int) -> tuple[int, Operation]:
    """Return the (stage, operation) that `operation` of `stage` waits for; a stage below 0 where there is none.

    The last forward turns into the first backward of the same worker, which its own order takes care of.
    """
    kind, microbatch, chunk = operation
    place = chunk * stages + stage - (1 if kind == "F" else -1)
    if not 0 <= place < stages * chunks:
        return -1, operation
    return place % stages, (kind, microbatch, place // stages)


def _link(stage: int, other: int, kind: str) -> StageLink | None:
    """Return the link between two stages; None where they are not neighbours."""
    return (min(stage, other), "forward" if kind == "F" else "backward") if abs(other - stage) == 1 else None


def step_s(
    order: Sequence[Sequence[Operation]],
    compute_s: Sequence[Array],
    transfers_s: Mapping[StageLink, Array] | None = None,
) -> Array:
    """Return (S,): the seconds until the last worker of each step has ended; arguments as pipeline_s."""
    last: Array = pipeline_s(order, compute_s, transfers_s).max(axis=(1, 2))
    return last
