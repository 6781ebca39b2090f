"""What an iteration takes in two datacenters: by a pipeline across them, by data parallelism across them, or in one."""

from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from evaluation.papers.crosspipe.solved import solved
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.schedulers import plan
from lanterne.pipeline.simulate.simulate import simulate

BYTES_PER_VALUE = 2  # bfloat16 activations, gradients and parameters


@dataclass(frozen=True, slots=True)
class Transformer:
    """Shape of a dense decoder with grouped-query attention and a gated feed-forward part (Llama style)."""

    num_layers: int
    hidden: int
    feedforward: int
    num_heads: int
    num_kv_heads: int
    vocabulary: int

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer: query, key, value and output projections, three feed-forward matrices."""
        kv_width = self.hidden * self.num_kv_heads // self.num_heads
        return 2 * self.hidden * (self.hidden + kv_width) + 3 * self.hidden * self.feedforward

    @property
    def parameters(self) -> int:
        """Parameters of the whole model, embedding and output matrices included."""
        return self.num_layers * self.layer_parameters + 2 * self.vocabulary * self.hidden

    def layer_flops(self, sequence_length: int) -> tuple[int, int]:
        """(matrix products, attention) floating-point operations of one layer's forward for one causal sequence."""
        return 2 * self.layer_parameters * sequence_length, 2 * sequence_length**2 * self.hidden


LLAMA3_405B = Transformer(
    num_layers=126, hidden=16384, feedforward=53248, num_heads=128, num_kv_heads=8, vocabulary=128256
)


@dataclass(frozen=True, slots=True)
class TwoDatacenters:
    """A training job on two datacenters, half of the devices in each, joined by one link per direction.

    The defaults are CrossPipe's appendix E: Llama 3 405B, 16 stages, 64-fold data parallelism, 32 microbatches of one
    sequence per pipeline, 500 TFLOP/s of use per GPU. Embedding and output count as one layer each (section 6.1).
    """

    latency_s: float
    bandwidth_bytes_per_s: float
    model: Transformer = LLAMA3_405B
    sequence_length: int = 8192
    tensor_parallel: int = 8
    num_stages: int = 16
    data_parallel: int = 64
    num_microbatches: int = 32
    flops_per_s: float = 500e12

    @property
    def stage_times_s(self) -> tuple[float, float, float]:
        """(F, B, W) seconds of a stage and microbatch: B does the products once and attention twice, W the products."""
        layers = (self.model.num_layers + 2) / self.num_stages
        rate = self.flops_per_s * self.tensor_parallel
        products, attention = (layers * flops / rate for flops in self.model.layer_flops(self.sequence_length))
        return products + attention, products + 2 * attention, products

    @property
    def message_nbytes(self) -> int:
        """Bytes that one microbatch sends over the link, all data-parallel pipelines together."""
        return self.sequence_length * self.model.hidden * BYTES_PER_VALUE * self.data_parallel

    @property
    def message_time_s(self) -> float:
        """Seconds that one microbatch occupies one direction of the link, without latency."""
        return self.message_nbytes / self.bandwidth_bytes_per_s

    @property
    def data_parallel_sync_s(self) -> float:
        """Seconds of the gradients' ring all-reduce between two datacenters, not overlapped.

        Cost: 2 (latency + 2 N/2 / bandwidth) with N parameters of 2 bytes.
        Paper: Chen et al. 2025 (CrossPipe), appendix E.
        """
        return 2 * (self.latency_s + BYTES_PER_VALUE * self.model.parameters / 2 / self.bandwidth_bytes_per_s)

    @property
    def pipeline_problem(self) -> Problem:
        """The Problem, in seconds, of a pipeline through both datacenters in the memory of 1F1B.

        Its middle link is the one between the datacenters: each direction of it carries the messages of all pipelines.
        """
        forward, backward, weight = self.stage_times_s
        middle = self.num_stages // 2 - 1
        links = range(self.num_stages - 1)
        return Problem(
            self.num_stages,
            self.num_microbatches,
            forward,
            backward,
            weight,
            link_latency=[self.latency_s if link == middle else 0.0 for link in links],
            link_bandwidth=[self.bandwidth_bytes_per_s if link == middle else None for link in links],
            message_nbytes=self.message_nbytes,
            max_inflight_activations=self.num_stages,
        )


class IterationComparison(NamedTuple):
    """Seconds of one iteration: by pipeline across both datacenters, data parallelism across both, and in one.

    Attributes:
        scheduler: the placement whose plan across is shorter, of solved.SOLVED.
        bound_s: what no plan of whole actions across is below, on either placement.
    """

    pipeline_s: float
    scheduler: str
    bound_s: float
    data_parallel_s: float
    single_s: float

    @property
    def speedup(self) -> float:
        """Data parallelism's time over the pipeline's."""
        return self.data_parallel_s / self.pipeline_s

    @property
    def slowdown(self) -> float:
        """The pipeline's time over that in one datacenter."""
        return self.pipeline_s / self.single_s


def compare(setting: TwoDatacenters, limit_s: float) -> IterationComparison:
    """Return what the ways to run `setting` take, with so many seconds of the solver for each plan.

    Across: the better of the solver's plans with one stage on each rank and with two. Data parallelism across: ZB-V in
    each datacenter, then the gradients, not overlapped. One datacenter: ZB-V or the better of the solver's plans for a
    link without delay.
    Paper: Chen et al. 2025 (CrossPipe), section 5.2, figure 9. At 4 GB/s and 4 ms the paper prints a speedup of 3.05;
        its printed setting gives 1.5: 137 s of activations against 203 s of gradients.
    """
    problem = setting.pipeline_problem
    alone = replace(problem, link_latency=(0.0,) * (problem.stages - 1), link_bandwidth=None)
    local = simulate(plan(alone, "zb_v"), alone).makespan
    across, within = _solved(problem, limit_s), _solved(alone, limit_s)
    name = min(across, key=lambda each: across[each].makespan)
    return IterationComparison(
        pipeline_s=across[name].makespan,
        scheduler=name,
        bound_s=min(solution.lower_bound for solution in across.values()),
        data_parallel_s=local + setting.data_parallel_sync_s,
        single_s=min(local, *(solution.makespan for solution in within.values())),
    )


# The problem without a link is the same in all settings.
_solved = cache(solved)
