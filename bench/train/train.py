"""Train a small GPT on a text by pipeline, data and tensor parallelism, in plain array code or one's own, and show the
loss.

  lanterne pipeline train -n 2 --model gpt --data README.md --check
  lanterne pipeline train -n 4 --data book.txt --stages 2 --data-parallel 2 --scheduler zb_h1 --zero1
  lanterne pipeline train -n 8 --data book.txt --stages 2 --data-parallel 2 --tp 2 --tokens chars
  lanterne pipeline train -n 2 --data book.txt --iterations 500 --checkpoint run.npz --checkpoint-every 20
  lanterne pipeline train -n 4 --data book.txt --iterations 500 --resume run.npz
  lanterne pipeline train -n 4 --data README.md --spare-rails 127.0.0.2,127.0.0.3 --cut 1-2@20=silent --check
  lanterne pipeline train -n 4 --data README.md --model examples.train_torch:gpt --width 32   # extra torch
  lanterne pipeline train -n 4 --data book.txt --device cuda --adapt
  lanterne pipeline train -n 4 --data book.txt --device cuda --transport nccl         # ran on ranks of one H200
  lanterne pipeline train -n 4 --data README.md --stages 2 --mitigate --pace 8ms --slow-link 0-2=60ms@30:60
  lanterne pipeline train -n 4 --stages 2 --data README.md --mitigate --adapt --cap 4M --slow-link 0-1=40ms@30:60
  lanterne pipeline train -n 4 --data README.md --transport tcp --endure --copies 1 --restarts 1 --kill 3@20 --check
  lanterne pipeline train -n 4 --stages 2 --data README.md --transport tcp --endure --copies 1 --mitigate --kill 1@30
  lanterne pipeline train -n 4 --stages 2 --data README.md --transport tcp --endure --copies 1 --adapt --kill 1@30
  lanterne pipeline train -n 3 --data README.md --iterations 24 --slow-link 1=20ms@12:24 --record own.json

Ranks are stages x data-parallel copies x tensor-parallel parts. The layers are timed first and cut into stages that
take alike; the plan is made for those times. --check trains again in one process and compares the losses of all
microbatches.
What is trained on depends on --seed and the number of the iteration only, so a run that was killed and goes on from its
last checkpoint has the losses of one that was not, on any number of ranks.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

from lanterne.bench.output import report
from lanterne.bench.output.given_options import GivenOptions
from lanterne.bench.output.options import (
    add_device,
    add_json,
    add_listen,
    add_ranks,
    add_seed,
    add_timeout,
    add_transport,
)
from lanterne.bench.output.units import format_nbytes, format_time, parse_nbytes, parse_time_s, whole
from lanterne.bench.pipeline.events_input import add_event_arguments, events_from
from lanterne.bench.train import endure
from lanterne.bench.train.adapt import Disturbed
from lanterne.bench.train.cut import RailCutter, Record, parse_cut
from lanterne.bench.train.cut import told as told_move
from lanterne.bench.train.job import TOLERANCES, add_model_arguments, check_finite, make_setup, planned
from lanterne.bench.train.publish import TrainingPublisher, check_publish
from lanterne.errors import InputError
from lanterne.transport.job.bootstrap import in_a_job
from lanterne.transport.job.launch import MAX_WORLD_SIZE, RANK_ENVIRONMENT
from lanterne.transport.registry import find_transport

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lanterne.bench.train.job import Setup
    from lanterne.bench.train.mitigate import Mitigated
    from lanterne.collectives.communicator import Communicator
    from lanterne.pipeline.adapt.injection import InjectedEvent
    from lanterne.pipeline.simulate.check_plan import CheckedPlan
    from lanterne.pipeline.train.enduring import Enduring, Training
    from lanterne.pipeline.train.state import TrainingState
    from lanterne.pipeline.train.trainer import Iteration, Trainer

ROWS = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    add_ranks(parser)
    add_transport(parser)
    parser.add_argument("--data", required=True, metavar="FILE", help="the text")
    parser.add_argument("--tokens", default="bytes", choices=("bytes", "chars"), help="what a token is (default bytes)")
    parser.add_argument("--iterations", type=whole(1), default=50, metavar="K", help="in all (default 50)")
    add_seed(parser, "weights and batches")
    add_model_arguments(parser, "8")
    parser.add_argument("--checkpoint", metavar="FILE", help="keep the state of training here, in a new file")
    parser.add_argument("--checkpoint-every", type=whole(1), metavar="K", help="iterations (default: the last only)")
    parser.add_argument("--resume", metavar="FILE", help="go on from this checkpoint, and keep it up to date")
    add_device(parser, "stages compute")
    parser.add_argument("--cap", metavar="SIZE", help="saved activations of a rank; what is more goes to the host")
    parser.add_argument("--spill", metavar="SIZE", help="memory of the host for it, of a rank (default 1GiB)")
    parser.add_argument("--adapt", action="store_true", help="measure links and stages, plan anew, swap plans")
    parser.add_argument(
        "--mitigate",
        action="store_true",
        help="notice slow ranks and links, name them, work around them while training, and back; events then count the "
        "ranks of the job",
    )
    parser.add_argument("--pace", metavar="T", help="with --mitigate: least time of F, B and W, as on slower cores")
    add_listen(parser)
    parser.add_argument(
        "--record",
        metavar="FILE",
        help="write runs for `pipeline calibrate`: iterations with and without --slow-link, over delegates",
    )
    parser.add_argument(
        "--profile",
        metavar="FILE",
        help="write the problem that this job is, for `pipeline plan`: times, memory, latency and bandwidth of links",
    )
    add_event_arguments(parser)
    group = parser.add_argument_group("paths that die", "A path that dies amid an iteration loses nothing.")
    group.add_argument(
        "--spare-rails",
        default="",
        metavar="A,B",
        help="addresses or interfaces of every host, or tcp: where messages go once MPI's or UCX's own path is dead",
    )
    group.add_argument(
        "--cut",
        action="append",
        default=[],
        metavar="A-B@K=HOW",
        help="break the path between two ranks half-way through iteration K: reset (default) or silent; repeatable",
    )
    endure.add_arguments(parser)
    parser.add_argument("--check", action="store_true", help="exit 1 unless one process has the same losses")
    add_timeout(parser)
    add_json(parser)


def run(args: GivenOptions) -> int:
    """Start the ranks, or train on this one; the exit code."""
    # As under our launcher: the threads of NumPy's products on all cores would wait for those of other ranks.
    for name, value in RANK_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    _check(args)
    timeout_s, rails = parse_time_s(args.timeout, "--timeout"), _spare_rails(args)
    if args.transport == "local":
        from lanterne.collectives.jobs import spawn

        document = spawn(args.ranks, train, args, timeout_s=timeout_s)[0]
        return _finish(args, document) if document is not None else 0
    if args.ranks is not None and not in_a_job():
        from lanterne.pipeline.train.checkpoint import load
        from lanterne.transport.job.launch import launch

        setup = _setup(args, args.ranks)
        if args.resume:
            load(args.resume, asdict(setup.settings))
        command = args.own_command()
        launcher = "mpi" if args.transport == "mpi" else "direct"
        return launch(command, args.ranks, launcher, restarts=args.restarts)
    from lanterne.collectives.jobs import init

    model = endure.name_of(asdict(_fitted(args, 1, 1, 1).settings)) if args.endure else ""
    with init(transport=args.transport, timeout_s=timeout_s, spare_rails=rails, model=model) as comm:
        document = train(comm, args)
    return _finish(args, document) if document is not None else 0


def _check(args: argparse.Namespace) -> None:
    """Raise InputError if the options do not fit each other."""
    if args.ranks is not None and not 1 <= args.ranks <= MAX_WORLD_SIZE:
        raise InputError(f"-n: got {args.ranks}, expected 1 to {MAX_WORLD_SIZE}")
    if parse_time_s(args.timeout, "--timeout") <= 0:
        raise InputError(f"--timeout: got {args.timeout}, expected more than 0")
    if args.checkpoint and args.checkpoint != args.resume and os.path.isfile(args.checkpoint):
        raise InputError(
            f"--checkpoint: got {args.checkpoint}, which is there, expected a new file, or --resume to go on"
        )
    if args.checkpoint_every and not (args.checkpoint or args.resume):
        raise InputError("--checkpoint-every: got no file, expected --checkpoint FILE or --resume FILE")
    _memory(args)
    check_publish(args)
    endure.check(args)
    if args.mitigate and (args.checkpoint or args.resume) and not args.endure:
        raise InputError("--mitigate: got --checkpoint or --resume without --endure, expected all of them, or it alone")
    if args.record and (args.adapt or args.mitigate or args.cap or args.endure):
        raise InputError("--record: got --adapt, --mitigate, --cap or --endure beside it, expected it without them")
    if args.profile and (args.record or args.adapt or args.mitigate or args.cap or args.endure):
        unwanted = "--record, --adapt, --mitigate, --cap or --endure"
        raise InputError(f"--profile: got {unwanted} beside it, expected it without them")
    if args.pace and not args.mitigate:
        raise InputError("--pace: got it without --mitigate, expected it with that")
    if args.mitigate and args.device == "cuda":
        raise InputError("--mitigate: got --device cuda beside it, expected it without that")
    if args.device == "cuda":
        from lanterne.kernels.arrays import require_device

        require_device()
    if args.cut and not args.spare_rails:
        raise InputError("--cut: got no --spare-rails, expected both: else the job ends with the path")
    if args.ranks is not None:
        for text in args.cut:
            parse_cut(text, args.ranks)
    if args.spare_rails and args.transport == "local":
        raise InputError("--spare-rails: got --transport local, expected mpi or ucx")
    if not args.learning_rate > 0:
        raise InputError(f"--learning-rate: got {args.learning_rate:g}, expected more than 0")
    if args.transport != "local":
        find_transport(args.transport)
    elif args.ranks is None:
        raise InputError("-n: got none, expected a number of ranks: --transport local has no launcher of its own")


def _on_streams(args: argparse.Namespace) -> bool:
    """Whether activations and gradients go from GPU to GPU: --adapt goes by when the CPU sees messages come."""
    return args.device == "cuda" and args.transport == "nccl" and not args.adapt


def _setup(args: argparse.Namespace, world_size: int) -> Setup:
    from lanterne.pipeline.model.text import read_text

    return make_setup(args, world_size, read_text(args.data, args.tokens))


def train(comm: Communicator, args: argparse.Namespace) -> Record | None:
    """Train; rank 0 gets what it found, the others None."""
    from lanterne.pipeline.train.checkpoint import load

    if args.endure:
        return _train_enduring(comm, args)
    setup = _setup(args, comm.world_size)
    comm.deterministic = comm.deterministic or args.deterministic
    plans, starts = planned(comm, setup, args)
    options: dict[str, Any] = {"layout": setup.layout, "starts": starts, "sharded": args.zero1, **_memory(args)}
    events = events_from(args, comm.world_size if args.mitigate else setup.layout.shape[1])
    publisher, about = TrainingPublisher(args), asdict(setup.settings)
    cutter = RailCutter(comm.transport, [parse_cut(text, comm.world_size) for text in args.cut])
    if args.mitigate:
        from lanterne.bench.train.mitigate import Mitigated

        mitigated = Mitigated(
            comm, setup, plans, options, events, _pace_s(args), adapts=args.adapt, prepare=cutter.follow
        )
        publisher.follow(comm, mitigated.loop.controller, must=True)
        results = _iterate(
            mitigated,
            args,
            about,
            publisher,
            comm=lambda: comm,
            news=mitigated.news,
            after=lambda: cutter.ended(mitigated.iterations - 1),
        )
        document = _described(setup, plans, starts, args, events) | mitigated.adapted()
        document |= {"spill": _spilled(comm, mitigated, args), "moves": cutter.moves(comm)}
        document["mitigation"] = mitigated.summary() if comm.rank == 0 else None
        mitigated.close()
        return {**document, "results": results} if comm.rank == 0 else None
    trainer = _plain_trainer(comm, args, setup, plans, options, events)
    notes: list[Callable[[Iteration], object]] = [lambda done: cutter.ended(done.number)]
    recorder = blocks = None
    if args.record:
        from lanterne.bench.train.recorded_training import RunRecorder

        recorder = RunRecorder(trainer, events, *(("zb", 0) if _on_streams(args) else ("zb_delegates", 1)))
        notes.append(recorder.note)
    if args.profile:
        from lanterne.bench.train.profiled_blocks import BlockRecorder

        blocks = BlockRecorder(trainer)
        notes.append(blocks.note)
    if args.resume:
        trainer.restore(load(args.resume, about))
    elif args.checkpoint:
        _save(args.checkpoint, _to_write(trainer, trainer.state()), about)
    disturbed = Disturbed(trainer, events, adapts=args.adapt) if events or args.adapt else None
    cutter.follow(trainer)
    training, news = disturbed or trainer, disturbed.news if disturbed else list

    def state() -> TrainingState | None:
        return _to_write(trainer, trainer.state())

    publisher.follow(comm, None, must=True)
    results = _iterate(training, args, about, publisher, comm=lambda: comm, news=news, state=state, notes=notes)
    if recorder and comm.rank == 0:
        report.write_json(args.record, report.envelope(runs=recorder.runs()))
    if blocks:
        problem = blocks.problem()
        if comm.rank == 0:
            report.write_json(args.profile, problem)
    moves, spilled = cutter.moves(comm), _spilled(comm, trainer, args)
    training.close()
    document = _described(setup, plans, trainer.starts, args, events)
    document |= disturbed.adapted() if disturbed else {"changes": [], "held": []}
    document |= {"spill": spilled, "moves": moves}
    return {**document, "results": results} if comm.rank == 0 else None


def _plain_trainer(
    comm: Communicator,
    args: argparse.Namespace,
    setup: Setup,
    plans: Sequence[CheckedPlan],
    options: dict[str, Any],
    events: Sequence[InjectedEvent],
) -> Trainer:
    """Return a Trainer on the device and data plane that the options ask for."""
    from lanterne.pipeline.planes.plane_makers import adapting, make_plane

    if args.device == "cuda":
        from lanterne.pipeline.device.device_stage import cuda_device

        options["device"] = cuda_device(comm)
    if _on_streams(args):
        if any(event.rank is not None for event in events):
            raise InputError("--slow-rank: got it on GPUs over nccl, whose CPUs only queue work, expected --slow-link")
        options["plane"] = partial(make_plane, "streams")
    elif args.record:
        # Delegates of every link, whose delays can be told.
        options["plane"] = partial(make_plane, "delegate", links={})
    elif events or args.adapt:
        options["plane"] = adapting
    return setup.trainer(comm, plans, **options)


def _iterate(
    training: Trainer | Training | Enduring,
    args: argparse.Namespace,
    about: Record,
    publisher: TrainingPublisher,
    *,
    comm: Callable[[], Communicator],
    news: Callable[[], Iterable[str]],
    state: Callable[[], TrainingState | None] = lambda: None,
    notes: Sequence[Callable[[Iteration], object]] = (),
    after: Callable[[], object] = lambda: None,
) -> list[Record]:
    """Train to the last iteration; show, publish and checkpoint what comes of it; return the records.

    Args:
        comm: gives the ranks of now. news: gives lines to print.
        state: gives the state for a checkpoint on the rank that writes it; all call it.
        notes: called with each Iteration; after: called after each, known here or not.
    """
    results: list[Record] = []
    tokens, file = about["microbatches"] * about["rows"] * about["length"], _shown(args)
    path, every = args.checkpoint or args.resume, args.checkpoint_every or args.iterations
    while training.iterations < args.iterations:
        done = training.iteration()
        after()
        is_first = comm().rank == 0
        if done is not None:
            publisher.ended(done)
            check_finite(done, tells=is_first)
            results.append(_record(done, tokens))
            for note in notes:
                note(done)
            if is_first:
                _show(results, args)
        for line in news() if is_first else ():
            print(line, file=file, flush=True)
        if path and training.iterations in {args.iterations, training.iterations // every * every}:
            _save(path, state(), about)
    publisher.close()
    return results


def _fitted(args: argparse.Namespace, copies: int, places: int, parts: int) -> Setup:
    """The Setup on other ranks than the options say; microbatches are as many in all."""
    counts = args.microbatches.split(",")
    total = args.microbatches if len(counts) in (1, copies) else str(sum(map(int, counts)))
    own = {"stages": places, "data_parallel": copies, "tp": parts, "microbatches": total}
    return _setup(args.replaced(**own), copies * places * parts)


def _train_enduring(comm: Communicator, args: argparse.Namespace) -> Record | None:
    """As `train`, while ranks die and return."""
    from lanterne.pipeline.adapt.injection import renumbered
    from lanterne.pipeline.train.checkpoint import load
    from lanterne.pipeline.train.enduring import Enduring
    from lanterne.pipeline.train.rank_layout import fit_layout

    comm.deterministic = comm.deterministic or args.deterministic
    path = args.checkpoint or args.resume
    one = _fitted(args, 1, 1, 1)
    about, layers = asdict(one.settings), len(one.model().layers)
    count = args.ranks or comm.world_size
    by_place = args.adapt and not args.mitigate
    events = events_from(args, fit_layout(count, args.stages, args.tp, layers).shape[1] if by_place else count)
    setups: dict[int, tuple[Setup, tuple[CheckedPlan, ...], tuple[int, ...]]] = {}
    # The one that runs now, if any; what those before it have done.
    now: list[Mitigated | Disturbed] = []
    acted: list[Record] = []
    adapted: dict[str, list[Record]] = {"changes": [], "held": []}

    def replaced(made: Mitigated | Disturbed) -> Mitigated | Disturbed:
        """Return `made`, which runs from now on; keep what the one before has done."""
        for old in now:
            adapted.update({name: adapted[name] + found for name, found in old.adapted().items()})
            acted.extend(old.loop.acted if old.loop else ())
        now[:] = [made]
        return made

    def make(comm: Communicator) -> Trainer | Training:
        copies, places, _ = fit_layout(comm.world_size, args.stages, args.tp, layers).shape
        setup = _fitted(args, copies, places, args.tp)
        plans, starts = planned(comm, setup, args)
        setups[comm.world_size] = setup, plans, starts
        options: dict[str, Any] = {"starts": starts, "sharded": args.zero1, **_memory(args)}
        prepare = partial(endure.kill_in, comm=comm, args=args)
        if not (args.mitigate or args.adapt):
            return prepare(setup.trainer(comm, plans, layout=setup.layout, **options))
        if not args.mitigate:
            from lanterne.pipeline.planes.plane_makers import adapting

            trainer = setup.trainer(comm, plans, layout=setup.layout, plane=adapting, **options)
            # Of the places that there are now.
            here = renumbered(events, {place: place for place in range(places)})
            disturbed = Disturbed(trainer, here, adapts=True)
            prepare(trainer)
            return replaced(disturbed)
        from lanterne.bench.train.mitigate import Mitigated

        here = renumbered(events, endure.numbers_of_places(comm))
        factors = [each.loop.factor for each in now if each.loop]
        before = endure.slow_before(comm, factors[0] if factors else 1.0)
        return replaced(
            Mitigated(
                comm, setup, plans, options, here, _pace_s(args), adapts=args.adapt, before=before, prepare=prepare
            )
        )

    def checkpoint() -> TrainingState | None:
        return load(path, about) if path and os.path.isfile(path) else None

    training = Enduring(
        comm, make, copies=args.copies, every=args.copy_every, checkpoint=checkpoint, model=endure.name_of(about)
    )
    if not comm.newcomers and args.resume:
        training.training.restore(load(args.resume, about))
    publisher = TrainingPublisher(args)
    shown = 0

    def follow(*, must: bool = False) -> None:
        controllers = [each.loop.controller for each in now if each.loop]
        publisher.follow(training.comm, controllers[0] if controllers else None, must=must)

    def news() -> list[str]:
        nonlocal shown
        changes, shown = training.changes[shown:], len(training.changes)
        return [*map(endure.told, changes), *(line for each in now for line in each.news())]

    def state() -> TrainingState | None:
        return _to_write(training.trainer, training.state())

    follow(must=not comm.newcomers)
    heard = _iterate(training, args, about, publisher, comm=lambda: training.comm, news=news, state=state, after=follow)
    results = {each["iteration"]: each for each in heard}
    found = training.finish(lambda comm: endure.merged(comm, results))
    for line in news() if training.comm.rank == 0 else ():
        print(line, file=_shown(args), flush=True)
    if training.comm.rank:
        return None
    document = _described(*setups[training.comm.world_size], args, events)
    document |= {**endure.summary(training), "results": found}
    for each in now:
        document |= {name: adapted[name] + found for name, found in each.adapted().items()}
        if not isinstance(each, Disturbed):
            # Of what was blamed, that since the ranks changed last.
            found_by = each.summary()
            document["mitigation"] = found_by | {"acted": [*acted, *found_by["acted"]]}
    return document


def _described(
    setup: Setup,
    plans: Sequence[CheckedPlan],
    starts: Sequence[int],
    args: argparse.Namespace,
    events: Iterable[InjectedEvent],
) -> Record:
    copies, places, parts = setup.layout.shape
    plan, ranks = plans[0].plan, copies * places * parts
    document: Record = {"ranks": ranks, "stages": places, "data_parallel": copies, "tensor_parallel": parts}
    document |= {"scheduler": plan.scheduler, "placement": plan.placement.name, "starts": list(starts)}
    document |= {"microbatches_of_copies": list(setup.microbatches), "zero1": args.zero1}
    return document | {"events": [event.to_dict() for event in events], "settings": asdict(setup.settings)}


def _pace_s(args: argparse.Namespace) -> float:
    return parse_time_s(args.pace, "--pace") if args.pace else 0.0


def _spare_rails(args: argparse.Namespace) -> tuple[str, ...]:
    return tuple(args.spare_rails.split(",")) if args.spare_rails else ()


def _memory(args: argparse.Namespace) -> dict[str, int]:
    """The Trainer's options for saved activations."""
    if args.cap is None:
        if args.spill is not None:
            raise InputError(f"--spill: got {args.spill} without --cap, expected both")
        return {}
    cap_nbytes, spill_nbytes = parse_nbytes(args.cap, "--cap"), parse_nbytes(args.spill or "1GiB", "--spill")
    if min(cap_nbytes, spill_nbytes) < 1:
        raise InputError(f"--cap, --spill: got {args.cap} and {args.spill}, expected at least 1 byte each")
    return {"cap_nbytes": cap_nbytes, "spill_nbytes": spill_nbytes}


def _spilled(
    comm: Communicator, training: Trainer | Mitigated, args: argparse.Namespace
) -> dict[str, list[int]] | None:
    """The most bytes that each rank held, and those moved to the host; None without --cap. A collective call."""
    import numpy as np

    if args.cap is None:
        return None
    found = np.empty((comm.world_size, 2), np.int64)
    comm.all_gather(np.array(training.spilled_nbytes), found.reshape(-1))
    return {"peak_nbytes": found[:, 0].tolist(), "spilled_nbytes": found[:, 1].tolist()}


def _record(done: Iteration, tokens: int) -> Record:
    return {
        "iteration": done.number,
        "loss": done.loss,
        "losses": done.losses.tolist(),
        "time_s": done.seconds,
        "tokens_per_s": tokens / done.seconds,
    }


def _shown(args: argparse.Namespace) -> TextIO:
    """Return where text goes: beside JSON on standard output, to standard error."""
    return sys.stderr if args.json == "-" else sys.stdout


def _show(results: Sequence[Record], args: argparse.Namespace) -> None:
    """One line of the table, for every tenth of the iterations; the others go by on a terminal."""
    record, file = results[-1], _shown(args)
    rate = f"{record['tokens_per_s']:.0f}"
    cells = record["iteration"] + 1, f"{record['loss']:.5f}", format_time(record["time_s"]), rate
    line = "{:>9}  {:>9}  {:>9}  {:>9}".format(*cells)
    if len(results) == 1:
        print("{:>9}  {:>9}  {:>9}  {:>9}".format("iteration", "loss", "time", "tokens/s"), file=file)
    every = max(1, args.iterations // ROWS)
    if len(results) == 1 or cells[0] % every == 0 or cells[0] == args.iterations:
        report.progress("")
        print(line, file=file, flush=True)
    else:
        report.progress(line)


def _finish(args: argparse.Namespace, document: Record) -> int:
    """Check, write and sum up, on rank 0 or after all ranks; the exit code."""
    file = _shown(args)
    if args.check:
        document["check"] = compare(args, document)
    if args.json:
        report.write_json(args.json, report.envelope(**document))
    rates = [record["tokens_per_s"] for record in document["results"]]
    if rates:
        words = (
            f"{document['stages']} stages x {document['data_parallel']} copies x {document['tensor_parallel']} parts"
        )
        print(f"# {words}, {document['scheduler']}: median {statistics.median(rates):.0f} tokens/s", file=file)
        if document.get("spill"):
            held, moved = (max(document["spill"][key]) for key in ("peak_nbytes", "spilled_nbytes"))
            words = f"held at most {format_nbytes(held)}, a rank moved at most {format_nbytes(moved)} to the host"
            print(f"# saved activations: a rank {words}", file=file)
        for move in document.get("moves", ()):
            print(told_move(move, document["results"]), file=file)
    else:
        print(f"# nothing to do: {args.resume} has {args.iterations} iterations or more", file=file)
    if "mitigation" in document:
        from lanterne.bench.train.mitigate import incidents_table

        columns, rows = incidents_table(document["mitigation"]["incidents"], args.iterations)
        report.print_table(columns, rows, left=(0,), file=file)
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


def _to_write(trainer: Trainer | None, state: TrainingState | None) -> TrainingState | None:
    """Return `state` on the rank that writes checkpoints, else None."""
    return state if trainer is not None and trainer.comm.rank == 0 else None


def _save(path: str, state: TrainingState | None, about: Record) -> None:
    """Write a checkpoint, if there is a state here."""
    from lanterne.pipeline.train.checkpoint import save

    if state is not None:
        save(path, state, about)


def compare(args: argparse.Namespace, document: Record) -> Record:
    """Train the same in one process: the largest relative difference of a microbatch's loss, and the verdict."""
    import numpy as np

    from lanterne.collectives.jobs import spawn
    from lanterne.pipeline.plan.problem import Problem
    from lanterne.pipeline.train.trainer import plans

    microbatches = str(document["settings"]["microbatches"])
    alone = {"stages": 1, "data_parallel": 1, "tp": 1, "resume": None, "microbatches": microbatches}
    setup = _setup(args.replaced(**alone), 1)

    def reference(comm: Communicator) -> list[NDArray[np.float64]]:
        one = setup.trainer(comm, plans(Problem(1, setup.settings.microbatches, 1, 1, 1), "1f1b"))
        losses = []
        for number in range(args.iterations):
            report.progress(f"one process: iteration {number + 1} of {args.iterations}")
            done = one.iteration()
            check_finite(done)
            losses.append(done.losses)
        report.progress("")
        return losses

    losses = spawn(1, reference)[0]
    worst = 0.0
    for record in document["results"]:
        expected = losses[record["iteration"]]
        worst = max(worst, float(np.abs(np.array(record["losses"]) / expected - 1).max()))
    tolerance = TOLERANCES[args.dtype]
    return {"largest_difference": worst, "tolerance": tolerance, "same": bool(worst <= tolerance)}
