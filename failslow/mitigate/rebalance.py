"""Microbatches for data-parallel groups of different speed: the exact optimum, and its gradient weights.

Paper: Wu et al. (GREYHOUND), section 5.2, strategy S2; differs: exact in microseconds instead of a quadratic program
that minimises the variance (which is another optimum: up to 1.2 times slower), and pipelines count their warm-up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lanterne.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Balance:
    """`microbatches` per group (ints) and the `makespan`, in the unit of the times."""

    microbatches: tuple[int, ...]
    makespan: float


def rebalance(times: ArrayLike, microbatches: int, multiple_of: int = 1, pipeline_stages: int = 1) -> Balance:
    """The distribution of `microbatches` that minimises the time of the slowest group.

    Minimises max (m_i + pipeline_stages - 1) t_i with sum m_i = microbatches, m_i >= 1 and m_i a multiple of
    `multiple_of`.

    Args:
        times: time of one microbatch per group, any unit, (groups,).
        microbatches: microbatches of the global batch.
        multiple_of: 1F1B wants multiples of its number of stages where it interleaves.
        pipeline_stages: a 1F1B pipeline takes t_i (m_i + stages - 1); 1 for no pipeline.

    Raises:
        InputError: no group, a time that is not positive, fewer microbatches than groups, or not a multiple.

    Cost: bisection down to one candidate per group, then one partition: O(groups log(microbatches)); 0.1 ms for 512
    groups.
    """
    import numpy as np

    t = _checked_times(times)
    if multiple_of < 1 or pipeline_stages < 1:
        raise InputError(f"rebalance: got multiple_of {multiple_of}, stages {pipeline_stages}, expected 1 or more")
    if microbatches % multiple_of or microbatches < multiple_of * len(t):
        raise InputError(
            f"rebalance: got {microbatches} microbatches for {len(t)} groups, expected a multiple of {multiple_of} "
            f"and at least {multiple_of * len(t)}"
        )
    units, unit_t, offset = microbatches // multiple_of, t * multiple_of, (pipeline_stages - 1) / multiple_of
    low, high = 0.0, (units + len(t) * (offset + 1)) / float(np.sum(1 / unit_t))
    fastest = float(unit_t.min())
    while high - low > fastest:
        middle = (low + high) / 2
        if int(_counts(np, middle, unit_t, offset).sum()) >= units:
            high = middle
        else:
            low = middle
    # Between `low` and `high` a group gains one unit, or by rounding two: hand out what is missing where it ends first.
    counts = _counts(np, low, unit_t, offset)
    while missing := min(units - int(counts.sum()), len(t)):
        ends = (counts + 1 + offset) * unit_t
        counts[np.argpartition(ends, missing - 1)[:missing]] += 1
    counts *= multiple_of
    return Balance(tuple(counts.tolist()), float(np.max((counts + (pipeline_stages - 1)) * t)))


def _checked_times(times: ArrayLike) -> NDArray[np.float64]:
    import numpy as np

    try:
        t = np.asarray(times, dtype=float)
    except (TypeError, ValueError) as error:
        raise InputError(f"rebalance: got times {times!r}, expected numbers") from error
    if t.ndim != 1 or t.size == 0:
        raise InputError(f"rebalance: got times of shape {t.shape}, expected one per group")
    # Beyond these no time is meant, and sums would overflow.
    good = (t >= 1e-100) & (t <= 1e100)
    if not bool(np.all(good)):
        raise InputError(
            f"rebalance: group {np.argmin(good)}: got time {t[np.argmin(good)]}, expected a positive number"
        )
    return t


def _counts(np: Any, limit: float, t: NDArray[np.float64], offset: float) -> NDArray[np.int64]:
    """How many units each group ends by `limit`, at least 1 each. The two corrections undo rounding of the division."""
    counts = np.maximum(np.floor(limit / t - offset), 1.0)
    counts += (counts + 1 + offset) * t <= limit
    counts -= ((counts + offset) * t > limit) & (counts > 1)
    whole: NDArray[np.int64] = counts.astype(np.int64)
    return whole


def refine(microbatches: Sequence[int], price_s: Callable[[int, int], float]) -> tuple[int, ...]:
    """`microbatches` after moves of one, each from the slowest group to the one that then ends first, while that gains.

    Args:
        microbatches: per group, at least 1 each. price_s: a function (group, microbatches) of what they take it.

    The makespan is then the least there is, if no price falls as microbatches are added: wherever a smaller one exists,
    the slowest group has fewer there, and some other one more.
    """
    counts = list(microbatches)
    taken_s = [price_s(group, count) for group, count in enumerate(counts)]
    while True:
        slowest = max(range(len(counts)), key=taken_s.__getitem__)
        offers = [(price_s(group, count + 1), group) for group, count in enumerate(counts) if group != slowest]
        least_s, taker = min(offers, default=(taken_s[slowest], slowest))
        if counts[slowest] == 1 or least_s >= taken_s[slowest]:
            return tuple(counts)
        counts[slowest], counts[taker] = counts[slowest] - 1, counts[taker] + 1
        taken_s[slowest], taken_s[taker] = price_s(slowest, counts[slowest]), least_s


def gradient_weights(microbatches: Sequence[int]) -> tuple[float, ...]:
    """Factors that keep the gradient of the whole batch right: group i's mean gradient counts m_i / sum(m).

    Multiply each group's *mean* gradient by its weight and all-reduce with "sum". Where the all-reduce averages over
    groups, multiply by the number of groups as well; where groups *sum* over microbatches, no weights are needed.

    Paper: GREYHOUND, section 5.2, weighted gradient aggregation.

    Raises:
        InputError: no group, or a count below 1.
    """
    if not microbatches or min(microbatches) < 1:
        raise InputError(f"gradient weights: got {tuple(microbatches)!r}, expected at least 1 microbatch per group")
    total = sum(microbatches)
    return tuple(count / total for count in microbatches)
