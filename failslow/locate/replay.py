"""What a step would take if something were different: its dependency graph replayed with other durations.

Each worker runs its compute operations in the order recorded. A forward waits for the forward of the stage before
(and its transfer), a backward for the backward of the stage after; the step ends when the last worker has ended, for
gradients are reduced over all. All steps and replicas are replayed at once, as arrays.
"""


def pipeline_s(order, compute_s, transfers_s=None):
    """Seconds until each replica's last operation ends.

    Args:
        order: per stage its operations (kind, microbatch, chunk), in the order in which they run.
        compute_s: per stage (S, D, operations) seconds.
        transfers_s: (boundary, direction) -> (S, D) seconds of one message; none where absent.

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
    ends, following = {}, [0] * stages
    now = [np.zeros(compute_s[0].shape[:2]) for _ in range(stages)]
    left = sum(map(len, order))
    while left:
        before = left
        for stage in range(stages):
            while following[stage] < len(order[stage]):
                operation = order[stage][following[stage]]
                needed = _needs(stage, operation, stages, chunks, present)
                if needed is not None and needed[:2] not in ends:
                    break
                start = now[stage]
                if needed is not None:
                    start = np.maximum(start, ends[needed[:2]] + transfers_s.get(needed[2], 0.0))
                now[stage] = start + compute_s[stage][:, :, following[stage]]
                ends[stage, operation] = now[stage]
                following[stage] += 1
                left -= 1
        if left == before:
            raise InputError(
                f"replay: stage {stage}, operation {order[stage][following[stage]]} waits for ever; is the trace whole?"
            )
    return np.stack(now, axis=2)


def _needs(stage, operation, stages, chunks, present):
    """(stage, operation, link) that `operation` of `stage` waits for; None where nothing that was recorded."""
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
    return other, needed, link


def step_s(order, compute_s, transfers_s=None):
    """(S,) seconds until the last worker of each step has ended; arguments as pipeline_s."""
    return pipeline_s(order, compute_s, transfers_s).max(axis=(1, 2))
