"""The `lanterne` command: the table of its commands, each a module in the folder of its family."""

from lanterne.bench.command_line import CommandLine

COMMANDS: dict[str, tuple[str, str]] = {
    "info": ("info", "what this machine offers: MPI, UCX, NCCL, GPUs, transports; versions"),
    "demo": ("demo.command", "watch it work: a link becomes slow, is noticed, found, worked around, and heals"),
    "launch": ("launch", "start a job of ranks here; those that fail are started again"),
    "bench": ("collective.all_reduce", "benchmark a collective, with and without a late rank"),
    "lab": ("lab.command", "run a command on every host of an emulated cluster with rate-limited links"),
    "schedule": ("collective.schedule", "make, check, price, draw or export a collective schedule"),
    "cost": ("collective.cost", "alpha-beta study over sizes, rank counts and delays"),
    "study": ("topology.command", "what a late rank costs on a cluster, with each algorithm"),
    "pipeline plan": ("pipeline.plan", "plan a pipeline for slow links, unequal stages and little memory"),
    "pipeline check": (
        "pipeline.check",
        "check a schedule file of torch: is it complete, free of deadlock, does a message block others",
    ),
    "pipeline simulate": ("pipeline.simulate", "price a pipeline plan under other delays, or with blocking sends"),
    "pipeline run": ("pipeline.run", "run pipeline plans on real processes over emulated links, against the simulator"),
    "pipeline train": ("train.train", "train a small GPT on text by pipeline, data and tensor parallelism"),
    "pipeline predict": ("pipeline.predict", "predict an iteration on real GPUs whose links got slow"),
    "pipeline calibrate": ("pipeline.calibrate", "find what messages cost on real devices, from recorded runs"),
    "pipeline sweep": ("pipeline.sweep", "draw makespan over link delay, bandwidth or memory, one line per scheduler"),
    "pipeline partition": ("pipeline.partition", "divide layers over stages on unequal devices"),
    "detect": ("failslow.detect", "find when a job became slow and when it recovered, in its iteration times"),
    "locate": ("failslow.locate", "say which worker, link or stage makes recorded steps long, or that it is the data"),
    "validate": ("failslow.validate", "find out in seconds which rank computes slowly and which link is slow"),
    "watch": ("failslow.watch", "run a program and say when it becomes slow, since when, and because of whom"),
    "serve": ("failslow.serve", "one page on loopback: the jobs watched here, their incidents, hosts' histories"),
    "history": ("failslow.history", "which hosts were named across jobs: chronic, or a burst"),
    "rebalance": ("failslow.rebalance", "distribute microbatches over groups of different speed"),
    "bench p2p": ("collective.p2p", "benchmark point to point: latency, one way, both ways, against bare mpi4py"),
}

# Commands and options that redo figures of our own are in `evaluation/`, a folder of the checkout.
_MOVED = {
    **{
        f"bench {name}": name
        for name in (
            *("deaths", "rejoins", "enduring", "splits", "strangers", "persistence", "mpi", "calls", "lab-peers"),
            *("ddp", "torch-pipelining", "lab-arrivals", "schedules", "pipeline", "planner", "delegate", "failover"),
            *("train", "failslow", "kernels", "gpu"),
        )
    },
    **{name: name for name in ("experiment", "simulate", "replay")},
    "info --kernels": "gpu-kernels",
    "study --random": "random-clusters",
}

# A Redis outlives the hosts of a job.
_REDIS = "LANTERNE_STORE=redis://HOST:PORT"
_ADAPTING = "`pipeline train --adapt --slow-link I=T@FROM:TO`, or `demo` without it"
_REMOVED = {
    **{f"demo {option}": _ADAPTING for option in ("-n", "--ranks", "--slow-link", "--seconds", "--hold")},
    "bench p2p --no-peer": "--transport without mpi4py, such as mpi",
    "serve --incidents": "--history, which takes a folder of incidents too",
    "demo --trace": "`pipeline run --adapt --trace`",
    "launch --spares": "--restarts, or another process with LANTERNE_JOIN",
    "witness": _REDIS,
    "lab --witness": _REDIS,
    "info --policy": "the constants of a module, in its source",
    "watch --otlp": "--listen, whose /metrics a collector scrapes",
    "pipeline train --otlp": "--listen, whose /metrics a collector scrapes",
    "pipeline train --spares": "--restarts",
    "pipeline train --state": "nothing: what is known of incidents is in the job's store",
}

LANTERNE = CommandLine(
    prog="lanterne",
    program="lanterne",
    package="lanterne.bench",
    about="Collectives and pipelines that stay fast although one rank is late or one link is slow.",
    commands=COMMANDS,
    starts_jobs=("lab",),
    measures=("bench p2p", "pipeline run"),
    runs_programs=("launch", "watch", "lab"),
    moved=_REMOVED | {old: f"`./run evaluate {new}`, in a checkout of lanterne" for old, new in _MOVED.items()},
)
main = LANTERNE.main
