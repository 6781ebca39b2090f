"""Schedules for ranks whose arrivals are known in seconds."""

from collections.abc import Sequence

from lanterne.collectives.algorithms.catalogue import Algorithm, make_schedule
from lanterne.collectives.algorithms.late.any_arrival import arrival_rounds
from lanterne.collectives.auto.predict import chunk_count
from lanterne.collectives.schedule.cost import CostModel
from lanterne.collectives.schedule.ir import CollectiveSchedule


def schedule_for_arrivals(
    line: Algorithm, arrivals_s: Sequence[float], nbytes: int, model: CostModel, num_chunks: int | None = None
) -> CollectiveSchedule:
    """Return the all-reduce of `nbytes` bytes by algorithm `line` for ranks that arrive at `arrivals_s`.

    An algorithm that expects one late rank expects the last.

    Args:
        arrivals_s: by rank, seconds.
        num_chunks: None for the count that `model` likes best.
    """
    ranks = len(arrivals_s)
    chunks = num_chunks or chunk_count(line, ranks, nbytes, model, min_chunk_nbytes=1)
    if not line.any_arrivals:
        last = max(range(ranks), key=lambda rank: arrivals_s[rank]) if line.late else None
        return make_schedule("all_reduce", line.name, ranks, chunks, late_rank=last)
    chunks = chunks or 1
    alpha_s, beta_s = model.alpha_beta(nbytes / chunks)
    arrivals = arrival_rounds(arrivals_s, float(beta_s) * nbytes / chunks, float(alpha_s))
    return make_schedule("all_reduce", line.name, ranks, chunks, arrivals=arrivals)
