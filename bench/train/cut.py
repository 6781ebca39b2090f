"""Paths that are broken on purpose in the middle of an iteration of training, and what became of that."""

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from lanterne.bench.output.units import format_time
from lanterne.errors import InputError
from lanterne.transport.rails.spare import HOWS, SpareTransport

if TYPE_CHECKING:
    from lanterne.collectives.communicator import Communicator
    from lanterne.pipeline.execute.execute import After, Measured
    from lanterne.pipeline.execute.stage import Stage
    from lanterne.pipeline.plan.action import Action
    from lanterne.pipeline.simulate.check_plan import CheckedPlan
    from lanterne.pipeline.train.trainer import Trainer
    from lanterne.transport.base import Transport

Record: TypeAlias = dict[str, Any]

EXPECTED = "A-B@ITERATION or A-B@ITERATION=reset|silent, such as 0-1@15=silent"
_SPEC = re.compile(r"(\d+)-(\d+)@(\d+)(?:=(\w+))?")


class Cut(NamedTuple):
    """The path between ranks `one` and `other` of the job dies half-way through `iteration`; `how` is one of HOWS."""

    one: int
    other: int
    iteration: int
    how: str


def parse_cut(text: str, world_size: int) -> Cut:
    """The Cut of `--cut`. Raises InputError."""
    match = _SPEC.fullmatch(text)
    how = (match and match[4]) or "reset"
    if not match or how not in HOWS:
        raise InputError(f"--cut: got {text!r}, expected {EXPECTED}")
    one, other, iteration = map(int, match.groups()[:3])
    if one == other or max(one, other) >= world_size:
        raise InputError(f"--cut: got ranks {one} and {other}, expected two different ones, 0 to {world_size - 1}")
    return Cut(one, other, iteration, how)


class RailCutter:
    """Makes cuts come true in a Trainer's iterations, and notes when messages moved to spare rails.

    Args:
        transport: of the job; cuts need one with spare rails, and without them nothing moves.
        cuts: those to make.
    """

    def __init__(self, transport: "Transport", cuts: Sequence[Cut]) -> None:
        self.transport = transport if isinstance(transport, SpareTransport) else None
        self.cuts = cuts
        self._moves: list[tuple[int, int, int]] = []

    def follow(self, trainer: "Trainer") -> "Trainer":
        """`trainer`, which runs its iterations through this from now on where there are cuts to make."""
        if self.cuts:
            self.trainer = trainer
            self._run = trainer.use(self._execute)
        return trainer

    def _execute(
        self,
        checked: "CheckedPlan",
        stages: "Mapping[int, Stage]",
        comm: "Communicator",
        *args: Any,
        after: "After | None" = None,
        **options: Any,
    ) -> "Measured":
        transport = self.transport
        assert transport is not None, "the command line asks for spare rails"
        now = [cut for cut in self.cuts if cut.iteration == self.trainer.iterations]
        left = len(checked.plan.ranks[comm.rank]) // 2

        def ended(action: "Action") -> None:
            nonlocal left
            left -= 1
            if not left:
                for cut in now:
                    if transport.rank in cut[:2]:
                        transport.cut(sum(cut[:2]) - transport.rank, cut.how)
            if after is not None:
                after(action)

        return self._run(checked, stages, comm, *args, after=ended, **options)

    def ended(self, iteration: int) -> None:
        """An iteration has ended."""
        if self.transport is None:
            return
        rails = self.transport.rails
        for peer, rail, _why, _at_s in self.transport.moved[len(self._moves) :]:
            self._moves.append((iteration, peer, rails.index(rail)))

    def moves(self, comm: "Communicator") -> list[Record]:
        """[{iteration, ranks, rail}] of all ranks; a collective call."""
        if self.transport is None:
            return []
        mine = np.full((comm.world_size * len(self.transport.rails), 3), -1, np.int64)
        mine[: len(self._moves)] = self._moves or np.empty((0, 3), np.int64)
        every = np.empty((comm.world_size, *mine.shape), np.int64)
        comm.all_gather(mine.reshape(-1), every.reshape(-1))
        found: dict[tuple[int, int, str], int] = {}
        for rank, rows in enumerate(every.tolist()):
            for iteration, peer, rail in rows:
                if iteration >= 0:
                    key = min(rank, peer), max(rank, peer), self.transport.rails[rail]
                    found[key] = min(iteration, found.get(key, iteration))
        return [
            {"iteration": iteration, "ranks": [one, other], "rail": rail}
            for (one, other, rail), iteration in sorted(found.items(), key=lambda item: item[1])
        ]


def told(move: Record, results: Iterable[Record]) -> str:
    """One line about a move, with what the iteration took beside the others."""
    times_s = {record["iteration"]: record["time_s"] for record in results}
    took_s, usual_s = times_s.get(move["iteration"]), statistics.median(times_s.values())
    one, other = move["ranks"]
    took = f"; it took {format_time(took_s)}, the others {format_time(usual_s)}" if took_s else ""
    number, rail = move["iteration"] + 1, move["rail"]
    return f"# iteration {number}: the path {one}-{other} died, its messages went on over {rail}{took}"
