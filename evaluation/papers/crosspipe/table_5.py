"""CrossPipe table 5: M70 on eight stages in two datacenters, with more microbatches, more memory, recomputation.

Case 1: 16 microbatches in the memory of 1F1B. Case 2: 32, and activations are made again layer by layer. Case 3: 32 in
twice the memory. All simulated, at the paper's scale: F 38 ms as it prints; B and W follow from its 1F1B without delay.
UD and Wave are the solver's, as in the paper, with what was proved of them.
"""

import statistics
from collections.abc import Collection, Sequence

from evaluation.papers.crosspipe.solved import SOLVED, over_bound, solved
from evaluation.papers.experiment import Columns, Figure, PaperValue, Record
from evaluation.papers.study import best_of_placements
from lanterne.bench.output import report
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.crosspipe import crosspipe
from lanterne.pipeline.planners.schedulers import plan
from lanterne.pipeline.simulate.check_plan import check
from lanterne.pipeline.simulate.simulate import simulate

STAGES, MESSAGE = 8, 1.0
F_S, B_S, W_S = 0.038, 0.038, 0.029
# Of an activation, what is kept where layers make theirs again: the input of each layer.
KEEPS = 0.06
# case -> microbatches, activations in memory, whether they are made again, whether the paper runs static schedules.
CASES = {1: (16, 8, False, True), 2: (32, 8, True, True), 3: (32, 16, False, False)}
DELAYS = ((0, 0), (0.25, 0.25), (0.25, 2), (2, 0.25), (2, 2))
SLOW_LINKS = (3,)
STATIC = {"1F1B": "1f1b", "ZBH1": "zb_h1", "ZBV": "zb_v"}
PAPER_NAMES = (*STATIC, "UDSub", *SOLVED)
NAMES = (*PAPER_NAMES, "best")
SOLVER_S = (20.0, 2.0)
# Rows as DELAYS x CASES; columns as PAPER_NAMES.
PAPER = """
.151 .133 .118 .137 .137 .119   .174 .168 .161 - .165 .157   - - - .121 .118 .108
.168 .150 .148 .149 .142 .127   .193 .187 .177 - .170 .159   - - - .123 .123 .112
.241 .230 .315 .181 .177 .250   .262 .259 .330 - .185 .274   - - - .144 .150 .235
.242 .229 .314 .160 .153 .148   .262 .258 .329 - .173 .163   - - - .127 .124 .115
.321 .309 .473 .198 .196 .256   .333 .331 .476 - .196 .291   - - - .145 .147 .245
"""
FIGURE_INCHES = (13, 5)
NOTES = """
ours/paper, seconds per microbatch; delay: latency and time of a message on the slow links, both over F
static schedules post their receives late (data plane `paired`), the planned ones ahead; UDSub: greedy, W in pieces;
UD, Wave: the solver's, of whole actions; over bound: of the least that was proved; best: ours, on the better placement,
whose W may be in pieces
"""
COLUMNS: Columns = [
    ("delay", "lat, bw"),
    ("case", ""),
    *((name, "s") for name in NAMES),
    *((name, "over bound") for name in SOLVED),
]


def run(quick: bool, limit_s: float) -> list[Record]:
    """One record per delay and case."""
    return rows_of(SLOW_LINKS, PAPER, quick, limit_s)


def rows_of(slow_links: Collection[int], paper: str, quick: bool, limit_s: float) -> list[Record]:
    """The records of one table."""
    delays = DELAYS[::2] if quick else DELAYS
    told = dict(zip(((delay, case) for delay in DELAYS for case in CASES), _paper(paper), strict=True))
    records = []
    for delay in delays:
        for case, (_, _, _, static) in CASES.items():
            report.progress(f"delay {delay}, case {case}")
            problem = problem_of(slow_links, delay, case)
            found: dict[str, float | None] = dict.fromkeys(NAMES)
            if static:
                for name, scheduler in STATIC.items():
                    checked = check(plan(problem, scheduler), problem, memory=False)
                    found[name] = simulate(checked, problem, rendezvous=True).makespan
            for name, made in (("UDSub", crosspipe(problem)), ("best", best_of_placements(problem))):
                found[name] = simulate(check(made, problem), problem).makespan
            solutions = solved(problem, limit_s)
            found |= {name: solution.makespan for name, solution in solutions.items()}
            records.append(
                {
                    "delay": delay,
                    "case": case,
                    "seconds": {name: value and value / problem.microbatches for name, value in found.items()},
                    "bound": {name: each.lower_bound / problem.microbatches for name, each in solutions.items()},
                    "paper": told[delay, case],
                }
            )
    return records


def problem_of(slow_links: Collection[int], delay: tuple[float, float], case: int) -> Problem:
    """The Problem, in seconds, of a delay (latency and message time over F) on `slow_links`."""
    microbatches, memory, recompute, _ = CASES[case]
    latency = [delay[0] * F_S if link in slow_links else 0 for link in range(STAGES - 1)]
    bandwidth = [MESSAGE / (delay[1] * F_S) if link in slow_links and delay[1] else None for link in range(STAGES - 1)]
    return Problem(
        STAGES,
        microbatches,
        F_S,
        B_S,
        W_S,
        latency,
        bandwidth if delay[1] else None,
        MESSAGE,
        max_inflight_activations=memory,
        recompute={"keeps": KEEPS} if recompute else None,
    )


def _paper(text: str) -> list[dict[str, float | None]]:
    """{name: seconds or None} of each row."""
    words = [None if word == "-" else float(word) for word in text.split()]
    count = len(PAPER_NAMES)
    return [dict(zip(PAPER_NAMES, words[at : at + count], strict=True)) for at in range(0, len(words), count)]


def row(record: Record) -> list[object]:
    """One line of the table."""
    cells = []
    for name in NAMES:
        ours, paper = record["seconds"][name], record["paper"].get(name)
        cells.append("-" if ours is None else f"{ours:.3f}" + (f"/{paper:.3f}" if paper else ""))
    cells += [over_bound(record["seconds"][name], bound) for name, bound in record["bound"].items()]
    return [f"{record['delay'][0]:g}, {record['delay'][1]:g}", record["case"], *cells]


def paper_values(records: Sequence[Record]) -> list[PaperValue]:
    """Return every cell that the paper prints too."""
    return [
        PaperValue(
            f"{name} at {record['delay'][0]:g}, {record['delay'][1]:g}, case {record['case']}",
            record["seconds"][name],
            record["paper"][name],
            _reason(name, record),
        )
        for record in records
        for name in PAPER_NAMES
        if record["paper"][name] and record["seconds"][name]
    ]


def _reason(name: str, record: Record) -> str:
    if name in STATIC:
        return "measured on GPUs there, simulated here; B and W are not printed and follow from one cell"
    if name == "UDSub" and record["delay"][1] <= 0.25:
        return "measured there; the greedy here takes a B in warm-up as soon as there is one"
    if record["seconds"][name] < record["paper"][name]:
        return "measured there; here a valid plan that is shorter by the paper's own model"
    if record["bound"].get(name, 0) > record["paper"][name]:
        return "no plan of whole actions is as short by the model: proved"
    return "not proved: the solver's time ended before a shorter plan or a higher bound"


def findings(records: Sequence[Record]) -> list[str]:
    """How near the paper's figures are, and what planning gains over the best static schedule."""
    lines = []
    for name in PAPER_NAMES:
        ratios = [r["seconds"][name] / r["paper"][name] for r in records if r["paper"][name] and r["seconds"][name]]
        lines.append(f"{name} {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    return ["ours over the paper's, median (range): " + ", ".join(lines)]


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """Bars per delay and case, crosses where the paper is."""
    axis = figure.subplots()
    width = 0.85 / len(NAMES)
    for i, name in enumerate(NAMES):
        x = [at + (i + 0.5) * width - 0.42 for at in range(len(records))]
        axis.bar(x, [record["seconds"][name] or 0 for record in records], width, color=f"C{i}", label=name)
        told = [(at, r["paper"].get(name)) for at, r in zip(x, records, strict=True) if r["paper"].get(name)]
        axis.plot(*zip(*told, strict=True) if told else ([], []), "x", color="black", markersize=5)
    labels = [f"{record['delay'][0]:g}, {record['delay'][1]:g}\ncase {record['case']}" for record in records]
    axis.set_xticks(range(len(records)), labels, fontsize=8)
    axis.set_ylabel("seconds per microbatch (cross: paper)")
    axis.legend(frameon=False, fontsize=8, ncols=4)
