"""The machines of the StragglAR paper: links, delays of their late ranks, and what all-reduces cost on them."""

from collections.abc import Sequence
from functools import cache
from math import nan
from typing import NamedTuple

from evaluation.papers.stragglar.iteration import AllReduce, CallPrice
from lanterne.collectives.algorithms.catalogue import find_algorithm, make_schedule
from lanterne.collectives.schedule.check_schedule import check
from lanterne.collectives.schedule.cost import CostModel, LinkCosts, price
from lanterne.collectives.schedule.ir import CollectiveSchedule

ALPHA_S = 3e-6
GIB = 1 << 30
# The paper's baselines, of which late_broadcast expects the late rank; its own algorithm, and ours.
BASELINES = ("ring", "rhd", "allpairs", "late_broadcast")
ALGORITHMS = (*BASELINES, "stragglar", "late_join")
# Chunks that late_join may cut a buffer into, per rank, beside as few as can be: it takes what is best.
PIECES = (1, 2, 8)


class GpuServer(NamedTuple):
    """A server of GPUs.

    Attributes:
        bytes_per_s: what its links are said to carry, each way.
        average_s: how late a rank is on average, fine-tuning Llama-3.2-3B.
        faster: how much faster than the best baseline StragglAR is with large buffers and delays, a share.
        critical_s: the delay from which on StragglAR is faster, 4 GiB, as measured (figures 5c and 5f).
        ideal_below: the largest buffer whose reduce-scatter takes no longer than that, by the paper's text; bytes.
    """

    name: str
    ranks: int
    bytes_per_s: float
    average_s: float
    faster: float
    critical_s: float = nan
    ideal_below: int = 0

    def stated(self) -> CostModel:
        """The links as they are said to be."""
        return CostModel(ALPHA_S, 1 / self.bytes_per_s)

    def fitted(self) -> CostModel:
        """The links with which the critical delay is the measured one."""
        free, slow = (critical_delay_s(self.ranks, 4 * GIB, CostModel(ALPHA_S, beta)) for beta in (0.0, 1e-12))
        return CostModel(ALPHA_S, 1e-12 * (self.critical_s - free) / (slow - free))


MACHINES = (
    GpuServer("DGX H100", 8, 450e9, 4.48e-3, 0.25, 5.53e-3, GIB),
    GpuServer("DGX A100", 8, 300e9, 9.46e-3, 0.25, 7.57e-3, 2 * GIB),
)
PERLMUTTER = GpuServer("4 x A100", 4, 100e9, 9.45e-3, 0.083)


@cache
def schedules_of(algorithm: str, ranks: int) -> tuple[CollectiveSchedule, ...]:
    """All-reduces whose last rank may be late."""
    late = ranks - 1 if find_algorithm("all_reduce", algorithm).late else None
    chunks = [None, *(pieces * ranks for pieces in PIECES)] if algorithm.startswith("late_join") else [None]
    return tuple(check(make_schedule("all_reduce", algorithm, ranks, many, None, late)).schedule for many in chunks)


def makespan_s(algorithm: str, nbytes: int, model: LinkCosts, start_s: Sequence[float]) -> float:
    """From the first rank's call to the end, rank i calling at start_s[i]; the last rank is expected to be late."""
    return min(price(each, nbytes, model, start_s).makespan_s for each in schedules_of(algorithm, len(start_s)))


def exposed_s(algorithm: str, ranks: int, nbytes: int, model: LinkCosts, delay_s: float) -> float:
    """From the last rank's call, `delay_s` after the others', to the end."""
    return makespan_s(algorithm, nbytes, model, [0.0] * (ranks - 1) + [delay_s]) - delay_s


def critical_delay_s(ranks: int, nbytes: int, model: LinkCosts, algorithm: str = "stragglar") -> float:
    """From which delay on `algorithm` ends before the ring, s; below 0: always."""
    return exposed_s(algorithm, ranks, nbytes, model, 0.0) - exposed_s("ring", ranks, nbytes, model, 0.0)


def reduce_scatter_s(ranks: int, nbytes: int, model: CostModel) -> float:
    """What StragglAR does before the late rank is there, by the paper's formula (section 3.2)."""
    rounds = ranks - 2
    return rounds * model.alpha_s + rounds / (ranks - 1) * nbytes * model.beta_s_per_byte


def prices(name: str, late: int, model: CostModel) -> CallPrice:
    """Return what prices a call by algorithm `name`; groups without rank `late` use the ring where it expects one."""

    @cache
    def finish_s(algorithm: str, nbytes: int, start_s: tuple[float, ...]) -> list[float]:
        costs = (price(each, nbytes, model, start_s) for each in schedules_of(algorithm, len(start_s)))
        return list(min(costs, key=lambda cost: cost.makespan_s).finish_s)

    def of_call(call: AllReduce, start_s: list[float]) -> list[float]:
        first_s = min(start_s)
        # Rounded, so that layers are alike.
        relative = tuple(round(each - first_s, 12) for each in start_s)
        algorithm = name if late in call.group or name in BASELINES else "ring"
        return [first_s + each for each in finish_s(algorithm, call.nbytes, relative)]

    return of_call
