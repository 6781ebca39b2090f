"""What a step would take if something were different: its dependency graph replayed with other durations.

Each worker runs its compute operations in the order recorded. A forward waits for the forward of the stage before
(and its transfer), a backward for the backward of the stage after; the step ends when the last worker has ended, for
gradients are reduced over all. All steps and replicas are replayed at once, as arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[np.float64]

# (kind "F" or "B", microbatch, chunk)
Operation: TypeAlias = tuple[str, int, int]
# (boundary: the lower of the stages at its ends, "forward" or "backward")
StageLink: TypeAlias = tuple[int, str]


def pipeline_s(
    order: Sequence[Sequence[Operation]],
    compute_s: Sequence[Array],
    transfers_s: Mapping[StageLink, Array] | None = None,
) -> Array:
    """Seconds until each replica's last operation ends.

    Args:
        order: per stage its operations, in the order in which they run.
        compute_s: per stage (S, D, operations) seconds.
        transfers_s: (S, D) seconds of one message; none where absent.

    Returns:
        (S, D, P): when each worker ends.

    Raises:
        InputError: the orders wait for each other in a circle.

    Cost: one vector operation of S x D elements per compute operation of a pipeline.
    """
    import numpy as np

    from lanterne.errors import InputError

    transfers_s = transfers_s or {}
    stages = len(order)
    chunks = 1 + max(chunk for operations in order for _, _, chunk in operations)
    present = [set(operations) for operations in order]
    ends: dict[tuple[int, Operation], Array] = {}
    following = [0] * stages
    now = [np.zeros(compute_s[0].shape[:2]) for _ in range(stages)]
    left = sum(map(len, order))
    while left:
        before = left
        for stage in range(stages):
            while following[stage] < len(order[stage]):
                operation = order[stage][following[stage]]
                needed = _needs(stage, operation, stages, chunks, present)
                start = now[stage]
                if needed is not None:
                    other, link = needed
                    if other not in ends:
                        break
                    transfer_s = transfers_s.get(link, 0.0) if link is not None else 0.0
                    start = np.maximum(start, ends[other] + transfer_s)
                now[stage] = start + compute_s[stage][:, :, following[stage]]
                ends[stage, operation] = now[stage]
                following[stage] += 1
                left -= 1
        if left == before:
            stage = max(stage for stage in range(stages) if following[stage] < len(order[stage]))
            raise InputError(
                f"replay: stage {stage}, operation {order[stage][following[stage]]} waits for ever; is the trace whole?"
            )
    return np.stack(now, axis=2)


def _needs(
    stage: int, operation: Operation, stages: int, chunks: int, present: Sequence[set[Operation]]
) -> tuple[tuple[int, Operation], StageLink | None] | None:
    """((stage, operation), link) that `operation` of `stage` waits for; None where nothing that was recorded."""
    kind, microbatch, chunk = operation
    step = 1 if kind == "F" else -1
    place = chunk * stages + stage - step
    if not 0 <= place < stages * chunks:
        # The last forward turns into the first backward of the same worker, which its own order takes care of.
        return None
    other, needed = place % stages, (kind, microbatch, place // stages)
    if needed not in present[other]:
        return None
    adjacent = abs(other - stage) == 1
    link = (min(stage, other), "forward" if kind == "F" else "backward") if adjacent else None
    return (other, needed), link


def step_s(
    order: Sequence[Sequence[Operation]],
    compute_s: Sequence[Array],
    transfers_s: Mapping[StageLink, Array] | None = None,
) -> Array:
    """(S,) seconds until the last worker of each step has ended; arguments as pipeline_s."""
    last: Array = pipeline_s(order, compute_s, transfers_s).max(axis=(1, 2))
    return last
