"""`lanterne pipeline train --endure`: training that goes on without ranks that die, and takes back those that come."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
from typing import TYPE_CHECKING, Any, NamedTuple

from lanterne.bench.output.units import format_time, whole
from lanterne.errors import InputError
from lanterne.transport.job.launchers import find_launch

if TYPE_CHECKING:
    from lanterne.collectives.communicator import Communicator
    from lanterne.pipeline.train.enduring import Enduring, GroupChange
    from lanterne.pipeline.train.trainer import Trainer


class Kill(NamedTuple):
    """That rank `rank` ends itself by SIGKILL when it is about to compute iteration `iteration`, from 0, or later."""

    rank: int
    iteration: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of it."""
    group = parser.add_argument_group("ranks that die", "Over tcp and ucx; docs/going-on.md.")
    group.add_argument("--endure", action="store_true", help="go on without ranks that die; take in those that come")
    group.add_argument("--copies", type=int, choices=(0, 1), default=0, help="of each rank's state, in its neighbour")
    group.add_argument("--copy-every", type=whole(1), default=1, metavar="K", help="iterations (default 1: gradients)")
    group.add_argument("--restarts", type=whole(0), default=0, metavar="R", help="so often a rank is started again")
    group.add_argument(
        "--kill",
        action="append",
        default=[],
        metavar="R@K",
        help="kill rank R in iteration K, from 1; repeatable: the next once the job has grown again",
    )


def check(args: argparse.Namespace) -> None:
    """Raise InputError if the options do not fit each other."""
    for name in ("copies", "restarts", "kill"):
        if getattr(args, name) and not args.endure:
            raise InputError(f"--{name}: got it without --endure, expected it with that")
    if not args.endure:
        return
    if args.transport not in ("tcp", "ucx"):
        raise InputError(f"--endure: got --transport {args.transport}, expected tcp or ucx, over which ranks go on")
    for name in ("spare_rails", "plan", "record", "profile"):
        if getattr(args, name, None):
            raise InputError(f"--endure: got --{name.replace('_', '-')} beside it, expected it without that")
    for name in ("slow_link", "slow_rank", "events"):
        if getattr(args, name) and not (args.mitigate or args.adapt):
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"--endure: got {option} without --mitigate or --adapt, expected it with one of them")
    if args.device != "cpu":
        raise InputError(f"--endure: got --device {args.device}, expected cpu")
    for text in args.kill:
        parse_kill(text, args.ranks)


def parse_kill(text: str, ranks: int | None) -> Kill:
    """The Kill that `R@K` stands for."""
    rank, at, number = text.partition("@")
    if not (at and rank.isdecimal() and number.isdecimal() and int(number)) or int(rank) >= (ranks or int(rank) + 1):
        raise InputError(f"--kill: got {text!r}, expected R@K, a rank of the job and an iteration from 1")
    return Kill(int(rank), int(number) - 1)


def kill_in(trainer: Trainer, comm: Communicator, args: argparse.Namespace) -> Trainer:
    """`trainer`, of the job's `comm` or of some of its ranks, that ends this rank when `--kill` says so."""
    kills = [parse_kill(text, None) for text in args.kill]

    def run(*given: Any, **more: Any) -> Any:
        for number, kill in enumerate(kills):
            # Where the job has grown again only after that iteration, as soon as it has.
            is_due = trainer.iterations >= kill.iteration and comm.epoch == number
            if is_due and comm.rank == kill.rank and comm.world_size == args.ranks:
                os.kill(os.getpid(), signal.SIGKILL)
        return execute(*given, **more)

    execute = trainer.use(run)
    return trainer


def numbers_of_places(comm: Communicator) -> dict[int, int]:
    """The rank on `comm` of each place of the job, by the number that it was started with. A collective call."""
    import numpy as np

    places = np.empty(comm.world_size, np.int64)
    comm.all_gather(np.array([find_launch(os.environ).rank]), places)
    return {int(place): rank for rank, place in enumerate(places)}


def slow_before(comm: Communicator, factor: float) -> dict[int, float]:
    """rank -> factor of the ranks that were blamed before `comm` was made; `factor`: of this one, 1: it was not.

    A collective call: whoever decides from now on may be new.
    """
    import numpy as np

    factors = np.empty(comm.world_size)
    comm.all_gather(np.array([factor]), factors)
    return {rank: float(each) for rank, each in enumerate(factors) if each > 1}


def name_of(about: object) -> str:
    """What a rank that is taken in must have in common with the others: all that losses depend on."""
    text = json.dumps(about, default=str, sort_keys=True)
    return f"train {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def told(change: GroupChange) -> str:
    """One line about a GroupChange."""
    done = f"{change.repeated} again, " if change.repeated else ""
    return (
        f"# iteration {change.iteration + 1}: {change.why}: {change.ranks} ranks go on, {done}state from "
        f"{change.source}, in {format_time(change.seconds)}"
    )


def merged(comm: Communicator, results: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the results of all iterations that any rank heard of. A collective call."""
    from lanterne.collectives.communicator import gather_bytes

    found: dict[int, dict[str, Any]] = {}
    for heard in gather_bytes(comm, json.dumps(list(results.values())).encode()):
        for record in json.loads(heard):
            found.setdefault(record["iteration"], record)
    return [found[number] for number in sorted(found)]


def summary(training: Enduring) -> dict[str, Any]:
    """For JSON: what came of it."""
    return {"changes_of_ranks": [change._asdict() for change in training.changes], "copy_s": training.kept.seconds}
