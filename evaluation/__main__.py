"""`./run evaluate NAME`: redo a figure of the papers, a score or a comparison; README.md lists them all."""

import runpy
import sys
from importlib.util import find_spec

from lanterne.bench.command_line import CommandLine

COMMANDS: dict[str, tuple[str, str]] = {
    "experiment": ("papers.experiment", "redo a figure of the papers: table, JSON and plot"),
    "deaths": ("deaths", "benchmark how soon survivors learn that a rank was killed"),
    "rejoins": ("rejoins", "benchmark jobs whose ranks are killed, which go on and take them back"),
    "enduring": ("enduring", "benchmark what being able to go on costs while all is well"),
    "splits": ("splits", "benchmark the memory of communicators that are split and closed"),
    "strangers": ("strangers", "benchmark a running job under forged connections to its ports"),
    "persistence": ("persistence", "benchmark a late rank that is named wrongly, or absent"),
    "mpi": ("peers.mpi_peers", "benchmark all-reduce against MPI's own and a plain ring over mpi4py"),
    "calls": ("speed.calls", "benchmark small calls, calls of a megabyte and CPU time against MPI's own"),
    "lab-peers": ("peers.lab_peers", "compare with MPICH, Open MPI and Gloo on the emulated cluster"),
    "lab-arrivals": ("peers.lab_arrivals", "benchmark all-reduce under patterns of arrivals on the emulated cluster"),
    "ddp": ("peers.ddp", "train a model by PyTorch's DDP over gloo and over lanterne, in turn"),
    "torch-pipelining": (
        "peers.torch_pipelining",
        "train a model by torch.distributed.pipelining and by lanterne, the same plans in turn",
    ),
    "random-clusters": ("random_clusters", "judge what `auto` takes on clusters drawn from a seed"),
    "schedules": ("speed.schedules", "benchmark generating and checking of collective schedules"),
    "pipeline": ("speed.planning", "benchmark planning, checking and simulating of pipelines"),
    "planner": ("speed.planner_gaps", "benchmark the planner: how far from the optimum, and how long it takes"),
    "delegate": ("rails.delegates", "benchmark delegates against inline sends: iterations, cost of a send"),
    "failover": ("rails.failover", "benchmark how long a pipeline stalls when a rail dies amid an iteration"),
    "train": ("speed.training", "benchmark training by a pipeline against training in one process"),
    "failslow": ("speed.watching", "benchmark what it costs to be watched and to redistribute microbatches"),
    "kernels": ("speed.kernels", "benchmark the reductions of one CPU or GPU against a plain copy"),
    "gpu-kernels": ("gpu.kernel_table", "compile the GPU kernels; registers, spills and occupancy of each"),
    "gpu": ("gpu.command", "measure the GPU path: reductions, staging, delays; writes a report"),
    "simulate": ("simulation.simulate", "run jobs from seeds, with deaths, cuts, lost packets; see what breaks"),
    "replay": ("simulation.replay", "replay a simulated job step by step, and shrink it"),
}

EVALUATE = CommandLine(
    prog="./run evaluate",
    program="evaluation",
    package="evaluation",
    about="Figures of the papers, scores and comparisons: each is measured anew.\n\n"
    "A module of evaluation/ that is a program by itself is a command too: `./run evaluate detector.score --help`.",
    commands=COMMANDS,
    starts_jobs=(
        *("deaths", "rejoins", "enduring", "strangers", "failover"),
        *("lab-peers", "lab-arrivals", "ddp", "torch-pipelining"),
    ),
    measures=[
        name for name in COMMANDS if name not in ("experiment", "simulate", "replay", "random-clusters", "gpu-kernels")
    ],
)


def main() -> int:
    """Run the command of sys.argv, or the module that it names; return the exit code."""
    name = next(iter(sys.argv[1:]), "")
    parts = name.split(".")
    if name not in COMMANDS and all(map(str.isidentifier, parts)) and find_spec(f"evaluation.{parts[0]}"):
        del sys.argv[1]
        runpy.run_module(f"evaluation.{name}", run_name="__main__", alter_sys=True)
        return 0
    return EVALUATE.main()


if __name__ == "__main__":
    sys.exit(main())
