"""Train a small GPT on a text by pipeline, data and tensor parallelism, in plain array code, and show the loss.

  lanterne pipeline train -n 2 --model gpt --data README.md --check
  lanterne pipeline train -n 4 --data book.txt --stages 2 --data-parallel 2 --scheduler zb_h1 --zero1
  lanterne pipeline train -n 8 --data book.txt --stages 2 --data-parallel 2 --tp 2 --tokens chars
  lanterne pipeline train -n 2 --data book.txt --iterations 500 --checkpoint run.npz --checkpoint-every 20
  lanterne pipeline train -n 4 --data book.txt --iterations 500 --resume run.npz        goes on, on any number of ranks

Ranks are stages x data-parallel copies x tensor-parallel parts. The layers are timed first and cut into stages that take
alike; the plan is made for those times. --check trains again in one process and compares the losses of all microbatches.
What is trained on depends on --seed and the number of the iteration only, so a run that was killed and goes on from its
last checkpoint has the losses of one that was not.
"""

import argparse
import statistics
import sys
from dataclasses import asdict, dataclass
from functools import partial

from ..errors import InputError
from ..transport.bootstrap import in_a_job
from ..transport.launch import MAX_WORLD_SIZE
from ..transport.registry import find_transport
from . import report
from .pipeline_input import read_json
from .units import format_time, parse_time_s

# What the losses of many ranks and of one may differ by, relative, over 50 iterations.
TOLERANCES = {"float32": 1e-5, "float64": 1e-10}
ROWS = 10


@dataclass(frozen=True)
class Settings:
    """What a checkpoint is of: all that the losses depend on."""

    model: str
    vocabulary: int
    length: int
    width: int
    heads: int
    blocks: int
    rows: int
    microbatches: int
    dtype: str
    learning_rate: float
    seed: int
    tokens: str


def add_arguments(parser):
    """The options of this command."""
    parser.add_argument("-n", "--ranks", type=int, metavar="N", help="start N ranks here")
    parser.add_argument("--transport", default="mpi", help="mpi (default), ucx or local")
    parser.add_argument("--data", required=True, metavar="FILE", help="the text")
    parser.add_argument("--tokens", default="bytes", choices=("bytes", "chars"), help="what a token is (default bytes)")
    parser.add_argument("--iterations", type=_positive, default=50, metavar="K", help="in all (default 50)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and batches (default 0)")
    group = parser.add_argument_group("model")
    group.add_argument("--model", default="gpt", choices=("gpt",))
    for name, default, what in (
        ("blocks", 4, "of attention and MLP"),
        ("width", 64, "numbers per token"),
        ("heads", 4, "of attention"),
        ("length", 64, "tokens of a row"),
        ("rows", 4, "of a microbatch"),
    ):
        group.add_argument(f"--{name}", type=_positive, default=default, metavar="N", help=f"{what} (default {default})")
    group.add_argument("--dtype", default="float32", choices=tuple(TOLERANCES))
    group.add_argument("--learning-rate", type=float, default=1e-3, metavar="R", help="of Adam (default 1e-3)")
    group = parser.add_argument_group("parallelism", "What is not given follows from the number of ranks.")
    group.add_argument("--stages", type=_positive, metavar="P", help="ranks of a pipeline")
    group.add_argument("--data-parallel", type=_positive, metavar="D", help="copies of the pipeline")
    group.add_argument("--tp", type=_positive, default=1, metavar="T", help="ranks that share each stage (default 1)")
    group.add_argument("--zero1", action="store_true", help="each copy keeps a part of the optimizer's averages")
    group.add_argument(
        "--microbatches", default="8", metavar="M[,M...]", help="of an iteration, in all or for each copy (default 8)"
    )
    group.add_argument("--scheduler", default="zb_h1", metavar="NAME", help="see `lanterne pipeline plan` (default zb_h1)")
    group.add_argument("--plan", metavar="FILE", help="instead: what `lanterne pipeline plan --json FILE` wrote")
    group.add_argument("--deterministic", action="store_true", help="nobody finds out who is late: repeated bit for bit")
    parser.add_argument("--checkpoint", metavar="FILE", help="keep the state of training here")
    parser.add_argument("--checkpoint-every", type=_positive, metavar="K", help="iterations (default: the last only)")
    parser.add_argument("--resume", metavar="FILE", help="go on from this checkpoint, and keep it up to date")
    parser.add_argument("--check", action="store_true", help="exit 1 unless one process has the same losses")
    parser.add_argument("--timeout", default="60s", metavar="T", help="of every wait (default 60s)")
    parser.add_argument("--json", metavar="FILE", help="write everything ('-' for standard output)")


def _positive(text):
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number of at least 1")
    return int(text)


def run(args):
    """Start the ranks, or train on this one; the exit code."""
    world_size = _check(args)
    if args.transport == "local":
        from ..collectives.communicator import spawn

        return _finish(args, spawn(world_size, train, args, timeout_s=parse_time_s(args.timeout, "--timeout"))[0])
    if args.ranks is not None and not in_a_job():
        from ..transport.launch import launch

        _setup(args, world_size)
        command = [sys.executable, "-m", "lanterne", *sys.argv[1:]]
        return launch(command, args.ranks, launcher="mpi" if args.transport == "mpi" else "direct")
    from ..collectives.communicator import init

    with init(transport=args.transport, timeout_s=parse_time_s(args.timeout, "--timeout")) as comm:
        document = train(comm, args)
    return _finish(args, document) if comm.rank == 0 else 0


def _check(args):
    """The number of ranks, if it is known here."""
    if args.ranks is not None and not 1 <= args.ranks <= MAX_WORLD_SIZE:
        raise InputError(f"-n: got {args.ranks}, expected 1 to {MAX_WORLD_SIZE}")
    if parse_time_s(args.timeout, "--timeout") <= 0:
        raise InputError(f"--timeout: got {args.timeout}, expected more than 0")
    if args.checkpoint_every and not (args.checkpoint or args.resume):
        raise InputError("--checkpoint-every: got no file, expected --checkpoint FILE or --resume FILE")
    if not args.learning_rate > 0:
        raise InputError(f"--learning-rate: got {args.learning_rate:g}, expected more than 0")
    if args.transport != "local":
        find_transport(args.transport)
    elif args.ranks is None:
        raise InputError("-n: got none, expected a number of ranks: --transport local has no launcher of its own")
    return args.ranks


@dataclass(frozen=True, eq=False)
class Setup:
    """What a run is made of, the same on every rank."""

    settings: Settings
    batches: object
    layout: object
    microbatches: tuple

    def model(self, tensor=None):
        """The Model, shared with the ranks of `tensor`."""
        from ..pipeline.stage_gpt import gpt

        own = self.settings
        return gpt(own.vocabulary, own.length, own.width, own.heads, own.blocks, own.rows, tensor)

    def trainer(self, comm, plans, **options):
        """A Trainer of it."""
        from ..pipeline.adam import Adam
        from ..pipeline.train import Trainer

        own = self.settings
        optimizer = partial(Adam, own.learning_rate)
        return Trainer(
            comm, self.model, self.batches, plans, optimizer=optimizer, dtype=own.dtype, seed=own.seed, **options
        )


def _setup(args, world_size):
    """The Setup that the options describe.

    Raises:
        InputError: they do not fit each other, the ranks, or the text.
    """
    from ..pipeline.checkpoint import load
    from ..pipeline.layout import make_layout
    from ..pipeline.text import Batches, read_text

    copies = args.data_parallel or (None if args.stages else 1)
    layout = make_layout(world_size, args.stages, copies, args.tp)
    microbatches = _distribution(args.microbatches, layout.shape[0])
    text = read_text(args.data, args.tokens)
    batches = Batches(text.tokens, sum(microbatches), args.rows, args.length, args.seed)
    names = ("model", "length", "width", "heads", "blocks", "rows", "dtype", "learning_rate", "seed", "tokens")
    settings = Settings(
        vocabulary=text.vocabulary, microbatches=sum(microbatches), **{name: getattr(args, name) for name in names}
    )
    setup = Setup(settings, batches, layout, microbatches)
    model = setup.model()
    model.starts(layout.shape[1])
    if args.heads % args.tp:
        raise InputError(f"--tp: got {args.tp} for {args.heads} heads, expected a divisor")
    if args.resume:
        load(args.resume, asdict(settings))
    return setup


def _distribution(text, copies):
    """(copies,) ints: the microbatches of each."""
    counts = text.split(",")
    if not all(count.isascii() and count.isdecimal() and int(count) for count in counts) or len(counts) not in (1, copies):
        raise InputError(f"--microbatches: got {text!r}, expected one number in all or one for each of {copies} copies")
    if len(counts) > 1:
        return tuple(map(int, counts))
    total = int(text)
    if total < copies:
        raise InputError(f"--microbatches: got {total}, expected at least one for each of {copies} copies")
    return tuple(total // copies + (copy < total % copies) for copy in range(copies))


def train(comm, args):
    """Train; rank 0 gets what it found, a dict, the others None."""
    from ..pipeline.checkpoint import load, save

    setup = _setup(args, comm.world_size)
    comm.deterministic = comm.deterministic or args.deterministic
    plans, starts = planned(comm, setup, args)
    trainer = setup.trainer(comm, plans, layout=setup.layout, starts=starts, sharded=args.zero1)
    about, path = asdict(setup.settings), args.checkpoint or args.resume
    if args.resume:
        trainer.restore(load(args.resume, about))
    results = []
    while trainer.iterations < args.iterations:
        done = trainer.iteration()
        results.append(_record(done, setup.settings))
        if comm.rank == 0:
            _show(results, args)
        last = trainer.iterations == args.iterations
        if path and (last or (args.checkpoint_every and trainer.iterations % args.checkpoint_every == 0)):
            state = trainer.state()
            if comm.rank == 0:
                save(path, state, about)
    trainer.close()
    copies, places, parts = setup.layout.shape
    shape = {"ranks": comm.world_size, "stages": places, "data_parallel": copies, "tensor_parallel": parts}
    plan = plans[0].plan
    shape |= {"scheduler": plan.scheduler, "placement": plan.placement.name, "starts": list(trainer.starts)}
    shape |= {"microbatches_of_copies": list(setup.microbatches), "zero1": args.zero1}
    return {**shape, "settings": about, "results": results} if comm.rank == 0 else None


def planned(comm, setup, args):
    """(a CheckedPlan per copy, the layers that stages begin with): rank 0 times the layers and plans, all check."""
    import numpy as np

    from ..pipeline.agree import from_first
    from ..pipeline.check import check
    from ..pipeline.layer_times import layer_times_s
    from ..pipeline.partition import partition_layers
    from ..pipeline.plan import Plan
    from ..pipeline.problem import Problem
    from ..pipeline.train import plans

    places = setup.layout.shape[1]

    def make():
        times_s = layer_times_s(setup.model(), np.dtype(setup.settings.dtype))
        cut = partition_layers(times_s.sum(axis=1), [1.0] * places)
        forward, backward_input, backward_weight = (cut.stage_sums(column.tolist()) for column in times_s.T)
        problem = Problem(places, max(setup.microbatches), forward, backward_input, backward_weight)
        if args.plan:
            found = [_plan_of_file(args.plan)] * len(setup.microbatches)
        else:
            found = [checked.plan for checked in plans(problem, args.scheduler, setup.microbatches)]
        num_stages = found[0].placement.num_stages
        starts = partition_layers(times_s.sum(axis=1), [1.0] * num_stages).starts
        return [problem.to_dict(), [one.to_dict() for one in found], starts]

    problem, documents, starts = from_first(comm, make)
    made = []
    for document, count in zip(documents, setup.microbatches, strict=True):
        made.append(check(Plan.from_dict(document), Problem.from_dict(problem | {"microbatches": count})))
    return tuple(made), tuple(starts)


def _plan_of_file(path):
    from ..pipeline.plan import Plan

    document = read_json(path)
    keys = ("placement", "stage_to_rank", "num_routes", "ranks", "microbatches", "scheduler", "message_order")
    if not isinstance(document, dict):
        raise InputError(f"{path}: got {type(document).__name__}, expected a plan, an object")
    return Plan.from_dict({key: document[key] for key in keys if key in document})


def _record(done, settings):
    tokens = settings.microbatches * settings.rows * settings.length
    return {
        "iteration": done.number,
        "loss": done.loss,
        "losses": done.losses.tolist(),
        "time_s": done.seconds,
        "tokens_per_s": tokens / done.seconds,
    }


def _show(results, args):
    """One line of the table, for every tenth of the iterations; the others go by on a terminal."""
    record = results[-1]
    file = sys.stderr if args.json == "-" else sys.stdout
    cells = record["iteration"] + 1, f"{record['loss']:.5f}", format_time(record["time_s"]), f"{record['tokens_per_s']:.0f}"
    line = "{:>9}  {:>9}  {:>9}  {:>9}".format(*cells)
    if len(results) == 1:
        print("{:>9}  {:>9}  {:>9}  {:>9}".format("iteration", "loss", "time", "tokens/s"), file=file)
    every = max(1, args.iterations // ROWS)
    if len(results) == 1 or cells[0] % every == 0 or cells[0] == args.iterations:
        report.progress("")
        print(line, file=file, flush=True)
    else:
        report.progress(line)


def _finish(args, document):
    """Check, write and sum up, on rank 0 or after all ranks; the exit code."""
    file = sys.stderr if args.json == "-" else sys.stdout
    if args.check:
        document["check"] = compare(args, document)
    if args.json:
        report.write_json(args.json, report.envelope(**document))
    rates = [record["tokens_per_s"] for record in document["results"]]
    if rates:
        words = f"{document['stages']} stages x {document['data_parallel']} copies x {document['tensor_parallel']} parts"
        print(f"# {words}, {document['scheduler']}: median {statistics.median(rates):.0f} tokens/s", file=file)
    else:
        print(f"# nothing to do: {args.resume} has {args.iterations} iterations or more", file=file)
    if not args.check:
        return 0
    found = document["check"]
    verdict = "the same" if found["same"] else "NOT THE SAME"
    print(
        f"# one process: {verdict}: losses differ by at most {found['largest_difference']:.2g} of their size "
        f"(expected {found['tolerance']:g})",
        file=file,
    )
    return 0 if found["same"] else 1


def compare(args, document):
    """Train the same in one process: the largest relative difference of a microbatch's loss, and the verdict."""
    import numpy as np

    from ..collectives.communicator import spawn
    from ..pipeline.problem import Problem
    from ..pipeline.train import plans

    setup = _setup(argparse.Namespace(**vars(args) | {"stages": 1, "data_parallel": 1, "tp": 1, "resume": None, "microbatches": str(document["settings"]["microbatches"])}), 1)

    def reference(comm):
        one = setup.trainer(comm, plans(Problem(1, setup.settings.microbatches, 1, 1, 1), "1f1b"))
        losses = []
        for number in range(args.iterations):
            report.progress(f"one process: iteration {number + 1} of {args.iterations}")
            losses.append(one.iteration().losses)
        report.progress("")
        return losses

    losses = spawn(1, reference)[0]
    worst = 0.0
    for record in document["results"]:
        expected = losses[record["iteration"]]
        worst = max(worst, float(np.abs(np.array(record["losses"]) / expected - 1).max()))
    tolerance = TOLERANCES[args.dtype]
    return {"largest_difference": worst, "tolerance": tolerance, "same": bool(worst <= tolerance)}
