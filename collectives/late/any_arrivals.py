"""The any_arrival schedule of ranks whose arrivals are known in seconds."""

from collections.abc import Sequence

from lanterne.collectives.algorithms.catalogue import best_num_chunks, find_algorithm, make_schedule
from lanterne.collectives.algorithms.late.any_arrival import arrival_rounds
from lanterne.collectives.schedule.cost import CostModel
from lanterne.collectives.schedule.ir import CollectiveSchedule


def schedule_for_arrivals(
    arrivals_s: Sequence[float], nbytes: float, model: CostModel, num_chunks: int | None = None
) -> CollectiveSchedule:
    """Return the any_arrival all-reduce of `nbytes` bytes for ranks that arrive at `arrivals_s`.

    Args:
        arrivals_s: by rank, seconds.
        num_chunks: None for the count that `model` likes best.
    """
    ranks = len(arrivals_s)
    line = find_algorithm("all_reduce", "any_arrival")
    chunks = num_chunks or best_num_chunks(line, ranks, nbytes, model) or 1
    alpha_s, beta_s = model.alpha_beta(nbytes / chunks)
    arrivals = arrival_rounds(arrivals_s, float(beta_s) * nbytes / chunks, float(alpha_s))
    return make_schedule("all_reduce", line.name, ranks, chunks, arrivals=arrivals)
