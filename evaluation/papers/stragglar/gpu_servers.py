"""The machines of the StragglAR paper: links, delays of their late ranks, and what all-reduces cost on them."""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from lanterne.collectives.algorithms.catalogue import find_algorithm, make_schedule
from lanterne.collectives.schedule.check_schedule import check
from lanterne.collectives.schedule.cost import CostModel, price
from lanterne.collectives.schedule.ir import CollectiveSchedule

ALPHA_S = 3e-6
GIB = 1 << 30
# The paper's baselines that know of no late rank, its own algorithm, and ours.
BASELINES = ("ring", "rhd", "allpairs")
ALGORITHMS = (*BASELINES, "stragglar", "late_join")
# Chunks that late_join may cut a buffer into, per rank, beside as few as can be: it takes what is best.
PIECES = (1, 2, 8)


class GpuServer(NamedTuple):
    """A server of eight GPUs.

    Attributes:
        bytes_per_s: what its links are said to carry, each way.
        critical_s: the delay from which on StragglAR is faster, 4 GiB, as measured (figures 5c and 5f).
        average_s: how late a rank is on average, fine-tuning Llama-3.2-3B.
        ideal_below: the largest buffer whose reduce-scatter takes no longer than that, by the paper's text; bytes.
    """

    name: str
    bytes_per_s: float
    critical_s: float
    average_s: float
    ideal_below: int

    def stated(self) -> CostModel:
        """The links as they are said to be."""
        return CostModel(ALPHA_S, 1 / self.bytes_per_s)

    def fitted(self) -> CostModel:
        """The links with which the critical delay is the measured one."""
        free, slow = (critical_delay_s(8, 4 * GIB, CostModel(ALPHA_S, beta)) for beta in (0.0, 1e-12))
        return CostModel(ALPHA_S, 1e-12 * (self.critical_s - free) / (slow - free))


MACHINES = (
    GpuServer("DGX H100", 450e9, 5.53e-3, 4.48e-3, GIB),
    GpuServer("DGX A100", 300e9, 7.57e-3, 9.46e-3, 2 * GIB),
)


@cache
def schedules_of(algorithm: str, ranks: int) -> tuple[CollectiveSchedule, ...]:
    """All-reduces whose last rank may be late."""
    late = ranks - 1 if find_algorithm("all_reduce", algorithm).late else None
    chunks = [None, *(pieces * ranks for pieces in PIECES)] if algorithm == "late_join" else [None]
    return tuple(check(make_schedule("all_reduce", algorithm, ranks, many, None, late)).schedule for many in chunks)


def makespan_s(algorithm: str, nbytes: int, model: CostModel, start_s: Sequence[float]) -> float:
    """From the first rank's call to the end, rank i calling at start_s[i]; the last rank is expected to be late."""
    return min(price(each, nbytes, model, start_s).makespan_s for each in schedules_of(algorithm, len(start_s)))


def exposed_s(algorithm: str, ranks: int, nbytes: int, model: CostModel, delay_s: float) -> float:
    """From the last rank's call, `delay_s` after the others', to the end."""
    return makespan_s(algorithm, nbytes, model, [0.0] * (ranks - 1) + [delay_s]) - delay_s


def critical_delay_s(ranks: int, nbytes: int, model: CostModel, algorithm: str = "stragglar") -> float:
    """From which delay on `algorithm` ends before the ring, s; below 0: always."""
    return exposed_s(algorithm, ranks, nbytes, model, 0.0) - exposed_s("ring", ranks, nbytes, model, 0.0)


def reduce_scatter_s(ranks: int, nbytes: int, model: CostModel) -> float:
    """What StragglAR does before the late rank is there, by the paper's formula (section 3.2)."""
    rounds = ranks - 2
    return rounds * model.alpha_s + rounds / (ranks - 1) * nbytes * model.beta_s_per_byte
