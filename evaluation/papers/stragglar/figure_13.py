"""StragglAR appendix J, figures 13 and 14: iterations of BERT-large on 8 to 64 GPUs with a late rank, 3 and 0.7 us.

Simulated as a task graph, two sequences of 512 tokens a GPU as in the paper. FlexNet's own graph is not published: here
the gradients of a layer are one call. Each call: the last rank comes late to each call, which all wait for, as
appendix J seems to have it. Overlapped: it is late once, and calls run while the ranks compute on. TP 4: tensor
parallelism of four ranks beside data parallelism, the late rank late to each call for gradients.
"""

from collections.abc import Iterator, Sequence

from evaluation.papers.experiment import Columns, Figure, Record
from evaluation.papers.stragglar.gpu_servers import prices
from evaluation.papers.stragglar.iteration import AllReduce, Compute, iteration_s
from lanterne.bench.output.bars import Bar, at_least, at_most
from lanterne.collectives.schedule.cost import CostModel

HIDDEN, LAYERS, TOKENS, SEQUENCES = 1024, 24, 512, 2
LAYER_PARAMETERS, EMBEDDING_PARAMETERS = 12 * HIDDEN**2 + 13 * HIDDEN, (30522 + TOKENS + 2) * HIDDEN
# Of gradients and of activations.
GRADIENT_BYTES, ACTIVATION_BYTES = 4, 2
# Assumed: an A100 at 40 % of its peak.
FLOPS = 125e12
BYTES_PER_S = 450e9
ALPHAS_S = {"13": 3e-6, "14": 0.7e-6}
RANKS = (8, 16, 32, 64)
DELAYS_S = (0.0, 0.5e-3, 1e-3, 2e-3)
# Calls of an iteration -> ranks of tensor parallelism, and whether calls for gradients overlap with computing.
CALLS = {"each call": (1, False), "overlapped": (1, True), "TP 4": (4, False)}
# The paper compares with these beside StragglAR; allpairs has two rounds alone.
RIVALS = ("ring", "rhd")
NAMES = (*RIVALS, "allpairs", "stragglar", "late_join")
FIGURE_INCHES = (10, 4.5)
NOTES = """
iteration: with the better of ring and rhd and nobody late; late by: how many times as fast iterations with stragglar
are as with the better of ring and rhd; allpairs: as with allpairs
"""
COLUMNS: Columns = [("figure", ""), ("calls", ""), ("ranks", ""), ("iteration", "ms")]
COLUMNS = [*COLUMNS, *(("late by", f"{1e3 * delay_s:g} ms") for delay_s in DELAYS_S), ("allpairs", "0.5 ms")]


def run(quick: bool) -> list[Record]:
    """One record per latency, kind of calls and number of ranks; `quick`: the fewest and the most ranks."""
    return [
        record(figure, calls, ranks)
        for figure in ALPHAS_S
        for calls in CALLS
        for ranks in (RANKS[:: len(RANKS) - 1] if quick else RANKS)
    ]


def record(figure: str, calls: str, ranks: int) -> Record:
    """Return iteration times by delay and algorithm."""
    model = CostModel(ALPHAS_S[figure], 1 / BYTES_PER_S)
    times = {
        delay_s: {
            name: float(iteration_s(tasks(ranks, *CALLS[calls], delay_s), ranks, prices(name, ranks - 1, model)))
            for name in NAMES
        }
        for delay_s in DELAYS_S
    }
    return {
        "figure": figure,
        "calls": calls,
        "ranks": ranks,
        "delays_s": list(DELAYS_S),
        "iteration_s": list(times.values()),
        "over_best": [_over(each, RIVALS) for each in times.values()],
        "over_allpairs": _over(times[DELAYS_S[1]], ("allpairs",)),
    }


def _over(times: dict[str, float], rivals: Sequence[str]) -> float:
    return min(times[name] for name in rivals) / times["stragglar"]


def tasks(ranks: int, tensor: int, overlapped: bool, delay_s: float) -> Iterator[Compute | AllReduce]:
    """Yield an iteration: layers forward, then backward with a call for the gradients of each, the embedding last.

    Args:
        tensor: ranks of tensor parallelism, neighbours; the others are copies.
        overlapped: calls for gradients run beside computing, and the last rank is late once, before the backward
            passes; else it is late before each of these calls.
    """
    everyone, late = range(ranks), (ranks - 1,)
    parts = [tuple(range(first, first + tensor)) for first in range(0, ranks, tensor)]
    copies = [tuple(range(place, ranks, tensor)) for place in range(tensor)]
    tokens = TOKENS * SEQUENCES * tensor
    forward_s = 2 * LAYER_PARAMETERS * tokens / tensor / FLOPS
    # After attention and after the feed-forward network, forward as well as backward.
    activations = [AllReduce(part, tokens * HIDDEN * ACTIVATION_BYTES) for part in parts if tensor > 1] * 2
    for _ in range(LAYERS):
        yield Compute(everyone, forward_s)
        yield from activations
    if overlapped:
        yield Compute(late, delay_s)
    for parameters in (*[LAYER_PARAMETERS] * LAYERS, EMBEDDING_PARAMETERS):
        if parameters == LAYER_PARAMETERS:
            yield Compute(everyone, 2 * forward_s)
            yield from activations
        if not overlapped:
            yield Compute(late, delay_s)
        yield from (AllReduce(group, GRADIENT_BYTES * parameters // tensor, overlapped) for group in copies)


def row(record: Record) -> list[object]:
    """One line of the table."""
    healthy_s = min(record["iteration_s"][0][name] for name in RIVALS)
    ratios = [*record["over_best"], record["over_allpairs"]]
    cells = [record["figure"], record["calls"], record["ranks"], f"{1e3 * healthy_s:.1f}"]
    return [*cells, *(f"{ratio:.3f}" for ratio in ratios)]


def _select(records: Sequence[Record], calls: str) -> list[Record]:
    return [record for record in records if record["calls"] == calls]


def findings(records: Sequence[Record]) -> list[str]:
    """What is left of the gain where calls overlap with computing, and with tensor parallelism."""
    lines = []
    for calls in ("overlapped", "TP 4"):
        late = [ratio for record in _select(records, calls) for ratio in record["over_best"][1:]]
        lines.append(f"{calls}, a rank late by 0.5 ms or more: {min(late):.3f} to {max(late):.3f} times as fast")
    return [*lines, "the paper prints no numbers of figures 13 and 14: its sentences on them are the bars"]


def bars(records: Sequence[Record]) -> list[Bar]:
    """What appendix J says: faster from 0.5 ms on, with 64 GPUs and 3 us no better than rhd, slower with no delay."""
    own = _select(records, "each call")
    largest = max(record["ranks"] for record in own)
    few = [r for r in own if r["figure"] == "14" or r["ranks"] < largest]
    many = [r for r in own if r["figure"] == "13" and r["ranks"] == largest]
    return [
        at_least("late by 0.5 ms or more, times as fast", min(min(r["over_best"][1:]) for r in few), 1.0),
        at_most("the same, 64 GPUs, 3 us", max(max(r["over_best"][1:]) for r in many), 1.0),
        at_most("nobody late, times as fast", max(r["over_best"][0] for r in own), 1.0),
    ]


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """Iteration times over the number of GPUs, late by 0.5 ms to each call, as in figures 13 and 14."""
    axes = figure.subplots(1, len(ALPHAS_S), sharey=True)
    for axis, (number, alpha_s) in zip(axes, ALPHAS_S.items(), strict=True):
        own = [record for record in _select(records, "each call") if record["figure"] == number]
        for name in NAMES:
            times = [1e3 * record["iteration_s"][1][name] for record in own]
            axis.plot([record["ranks"] for record in own], times, marker="o", markersize=3, label=name)
        axis.set_xscale("log", base=2)
        axis.set_title(f"figure {number}: {1e6 * alpha_s:g} us", loc="left", fontsize=10)
        axis.set(xlabel="GPUs", ylabel="iteration, 0.5 ms late (ms)")
    axes[0].legend(frameon=False)
