"""StragglAR table 2: how much faster training gets where one rank is late in most iterations, eight A100 GPUs.

Simulated, with the links that figure 5 fits: an iteration computes, then all gradients are reduced in one call, of four
bytes each as in the published log; the expected rank is 9.46 ms late in a share of iterations, in the others nobody is.
Figure 12 tells how long an iteration takes: 7 s less in 100 are 4.75 %. `./run evaluate persistence` measures the same
on this machine.
"""

from collections.abc import Sequence

from evaluation.papers.experiment import Columns, Figure, PaperValue, Record
from evaluation.papers.stragglar.gpu_servers import MACHINES, exposed_s, prices
from evaluation.papers.stragglar.iteration import AllReduce, Compute, iteration_s
from lanterne.collectives.schedule.cost import CostModel

RANKS, MACHINE = 8, MACHINES[1]
SAVED_S = 0.07
ITERATION_S = SAVED_S / 0.0475
# Gradients, bytes; how much faster than with the ring, and the share of iterations in which the expected rank is late.
MODELS = {
    "Llama-3.2-3B": (4 * 3.21e9, 0.0475, 0.90),
    "Llama-3.2-3B, figure 2b": (4e9, 0.0475, 0.90),
    "Phi-3-mini-3.8B": (4 * 3.82e9, 0.0443, 0.95),
    "Qwen-2.5-3B": (4 * 3.09e9, 0.0239, 0.77),
}
OURS = ("stragglar", "late_join")
GPU_HOURS_A_DAY = 24 * RANKS
# Rates that are tried for the most that a delay can save, bytes/s: steps of 5 %.
RATES = tuple(5e9 * 1.05**step for step in range(140))
NEVER = "no alpha-beta model gives the paper's 70 ms an iteration with one call and 9.46 ms of delay, see above"
FIGURE_INCHES = (8, 4.5)
NOTES = """
at most: if the rank always came so late that all that can be done without it is done; paper: measured
figure 2b: a buffer of 4 GB, as figure 2b of the paper has it for this model; hours: of GPUs, saved a day
"""
COLUMNS: Columns = [("model", ""), ("gradients", "GB"), ("late", "share"), ("ring", "of an iteration"), ("paper", "")]
COLUMNS = [*COLUMNS, *((name, below) for name in OURS for below in ("faster", "at most")), ("stragglar", "hours")]


def run(quick: bool) -> list[Record]:
    """One record per model and buffer; the most that can be saved is in the first."""
    links, records = MACHINE.fitted(), []
    for name, (nbytes, faster, share) in MODELS.items():
        record: Record = {"model": name, "nbytes": int(nbytes), "share": share, "paper": faster}
        record["ring_share"] = exposed_s("ring", RANKS, int(nbytes), links, 0.0) / ITERATION_S
        for algorithm in OURS:
            late, never, at_best = (
                saved_s(algorithm, int(nbytes), links, delay_s) for delay_s in (MACHINE.average_s, 0.0, 10.0)
            )
            saved = share * late + (1 - share) * never
            record[algorithm] = {
                "faster": ITERATION_S / (ITERATION_S - saved) - 1,
                "at_most": ITERATION_S / (ITERATION_S - at_best) - 1,
            }
        record["gpu_hours"] = GPU_HOURS_A_DAY * record["stragglar"]["faster"]
        records.append(record)
    # Of a size and a rate only the product of size and time per byte counts, but for latency.
    nbytes = records[0]["nbytes"]
    records[0]["most_saved_s"] = max(
        saved_s("stragglar", nbytes, CostModel(links.alpha_s, 1 / rate), MACHINE.average_s) for rate in RATES
    )
    return records


def saved_s(algorithm: str, nbytes: int, links: CostModel, delay_s: float) -> float:
    """Return how much less an iteration takes by `algorithm` than by the ring, its last rank `delay_s` late."""
    computing_s = ITERATION_S - exposed_s("ring", RANKS, nbytes, links, 0.0)
    tasks: list[Compute | AllReduce] = [
        Compute(range(RANKS), max(0.0, computing_s)),
        Compute((RANKS - 1,), delay_s),
        AllReduce(tuple(range(RANKS)), nbytes),
    ]
    ring, ours = (iteration_s(tasks, RANKS, prices(name, RANKS - 1, links)) for name in ("ring", algorithm))
    return float(ring - ours)


def row(record: Record) -> list[object]:
    """One line of the table."""
    cells: list[object] = [record["model"], f"{record['nbytes'] / 1e9:.1f}", f"{record['share']:.0%}"]
    cells += [f"{record['ring_share']:.1%}", f"{record['paper']:+.2%}"]
    cells += [f"{record[name][key]:+.2%}" for name in OURS for key in ("faster", "at_most")]
    return [*cells, f"{record['gpu_hours']:+.2f}"]


def findings(records: Sequence[Record]) -> list[str]:
    """Where the sign comes from, and what a delay can save at all."""
    one, fewer = (record["stragglar"]["faster"] for record in records[:2])
    most_s = records[0]["most_saved_s"]
    return [
        f"the sign comes from the size of the call: {one:+.2%} with {records[0]['nbytes'] / 1e9:.1f} GB in one call, "
        f"{fewer:+.2%} with the 4 GB of figure 2b",
        f"at no rate from {RATES[0] / 1e9:.0f} to {RATES[-1] / 1e9:.0f} GB/s a rank {1e3 * MACHINE.average_s:g} ms "
        f"late saves more than {1e3 * most_s:.2f} ms of a call ({most_s / ITERATION_S:.2%}); the paper's gain is "
        f"{1e3 * SAVED_S:.0f} ms an iteration",
    ]


def paper_values(records: Sequence[Record]) -> list[PaperValue]:
    """Gains, and GPU hours saved a day."""
    found = []
    for record in records:
        found.append(PaperValue(f"{record['model']}, faster", record["stragglar"]["faster"], record["paper"], NEVER))
        hours = GPU_HOURS_A_DAY * record["paper"]
        found.append(PaperValue(f"{record['model']}, GPU hours", record["gpu_hours"], hours, NEVER))
    return found


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """Gains beside the paper's."""
    axis = figure.subplots()
    places = range(len(records))
    axis.plot(places, [100 * r["paper"] for r in records], "kx", markersize=9, label="paper")
    for i, name in enumerate(OURS):
        for key, marker in (("faster", "o"), ("at_most", "^")):
            values = [100 * r[name][key] for r in records]
            axis.plot(places, values, marker, color=f"C{i}", label=f"{name}, {key.replace('_', ' ')}")
    axis.axhline(0, color="grey", linewidth=0.8)
    axis.set_xticks(places, [r["model"] for r in records])
    axis.set_ylabel("iterations faster than with the ring (%)")
    axis.legend(frameon=False)
