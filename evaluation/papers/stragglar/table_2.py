"""StragglAR table 2: how much faster training gets where one rank is late in most iterations, eight A100 GPUs.

Simulated, with the links that figure 5 fits: all gradients, of four bytes each as in the published log, are reduced in
one call; the expected rank is 9.46 ms late in a share of iterations, in the others nobody is. Figure 12 tells how long
an iteration takes: 7 s less in 100 are 4.75 %. `./run evaluate persistence` measures the same on this machine.
"""

from collections.abc import Sequence

from evaluation.papers.experiment import Columns, Figure, Record
from evaluation.papers.stragglar.gpu_servers import MACHINES, exposed_s
from lanterne.bench.output.bars import Bar, at_least

RANKS, MACHINE = 8, MACHINES[1]
ITERATION_S = 0.07 / 0.0475
# Parameters; how much faster than with the ring, and the share of iterations in which the expected rank is late.
MODELS = {
    "Llama-3.2-3B": (3.21e9, 0.0475, 0.90),
    "Phi-3-mini-3.8B": (3.82e9, 0.0443, 0.95),
    "Qwen-2.5-3B": (3.09e9, 0.0239, 0.77),
}
OURS = ("stragglar", "late_join")
FIGURE_INCHES = (8, 4.5)
NOTES = """
at most: if the rank always came so late that all that can be done without it is done; paper: measured
the gains of the paper are more than any delay gives by the alpha-beta model: its ring took longer than that says
"""
COLUMNS: Columns = [("model", ""), ("gradients", "GB"), ("late", "share"), ("ring", "of an iteration"), ("paper", "")]
COLUMNS = [*COLUMNS, *((name, below) for name in OURS for below in ("faster", "at most"))]


def run(quick: bool) -> list[Record]:
    """One record per model."""
    links, records = MACHINE.fitted(), []
    for name, (parameters, faster, share) in MODELS.items():
        nbytes = int(4 * parameters)
        record: Record = {"model": name, "nbytes": nbytes, "share": share, "paper": faster}
        ring = exposed_s("ring", RANKS, nbytes, links, 0.0)
        for algorithm in OURS:
            late, never, at_best = (
                ring - exposed_s(algorithm, RANKS, nbytes, links, delay) for delay in (MACHINE.average_s, 0.0, 10.0)
            )
            saved = share * late + (1 - share) * never
            record[algorithm] = {
                "faster": ITERATION_S / (ITERATION_S - saved) - 1,
                "at_most": ITERATION_S / (ITERATION_S - at_best) - 1,
            }
        records.append(record | {"ring_share": ring / ITERATION_S})
    return records


def row(record: Record) -> list[object]:
    """One line of the table."""
    cells: list[object] = [record["model"], f"{record['nbytes'] / 1e9:.1f}", f"{record['share']:.0%}"]
    cells += [f"{record['ring_share']:.1%}", f"{record['paper']:+.2%}"]
    return [*cells, *(f"{record[name][key]:+.2%}" for name in OURS for key in ("faster", "at_most"))]


def bars(records: Sequence[Record]) -> list[Bar]:
    """The paper's gains."""
    return [at_least(f"{r['model']}, stragglar", r["stragglar"]["faster"], r["paper"], "{:.2%}") for r in records]


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
