"""Runs a checked plan on the ranks of a communicator: each its own actions in order, with receives posted ahead.

What an action needs of its own rank is handed over in memory; what comes from another rank is a message. Messages from
one rank to another go in the order of the sender's plan, and their receives are posted in it, so that no tags are
needed to tell them apart.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from lanterne.collectives.communicator import Communicator, core_of
from lanterne.errors import InputError, LanterneError, TransportTimeout
from lanterne.pipeline.execute.stage import Message, Samples, Stage, StageArray
from lanterne.pipeline.plan.action import KINDS, Action
from lanterne.pipeline.plan.costs import costs
from lanterne.pipeline.planes.data_plane import DataPlane, Receive
from lanterne.pipeline.planes.inline import Inline
from lanterne.pipeline.simulate.check_plan import CheckedPlan
from lanterne.pipeline.simulate.program import LAST_KINDS, senders_of
from lanterne.pipeline.simulate.ready_first import ReadyFirst
from lanterne.pipeline.simulate.simulate import simulate

After: TypeAlias = Callable[[Action], object]
Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class Measured:
    """What one rank did: `actions`, and about each an entry of these arrays, (num_actions,).

    Times are those of time.monotonic(); on one host all ranks' have one origin.

    Attributes:
        ready_s: when the rank had what the action waits for; for one that waits for no message, its start.
        waited: whether the rank waited for that message: it then came at `ready_s`, else some time before.
        sent_s: when the rank had handed over the action's message and could go on; nan where it sends none.
        blocked: whether it had to wait for that.
    """

    rank: int
    actions: tuple[Action, ...]
    ready_s: NDArray[np.float64]
    waited: NDArray[np.bool_]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    sent_s: NDArray[np.float64]
    blocked: NDArray[np.bool_]


def execute(
    checked: CheckedPlan,
    stages: Mapping[int, Stage],
    comm: Communicator,
    inputs: Samples = None,
    targets: Samples = None,
    *,
    plane: DataPlane | None = None,
    timeout_s: float | None = None,
    after: After | None = None,
    ready_first_s: float | None = None,
) -> Measured:
    """Run one iteration of a plan, all F, B and W, and return this rank's Measured; every rank of `comm` calls it.

    The weights stay as they are: reduce the stages' gradients if there are copies, then call their `step`.

    Args:
        checked: a CheckedPlan, the same on every rank.
        stages: stage -> Stage, those that the plan's placement puts on this rank.
        comm: a Communicator of as many ranks as the plan has.
        inputs, targets: as Stage.begin has them.
        plane: the DataPlane that carries messages; None for Inline(comm).
        timeout_s: seconds to wait for a message; None for the communicator's.
        ready_first_s: not None: run what is ready, with the plan as a hint (see simulate.ready_first); the seconds in a
            unit of the times of the problem that the plan was checked for.
        after: called with each Action once it has ended and its message is on its way; None for nothing.

    Raises:
        InputError: the plan does not fit the communicator or the stages.
        LanterneError: a stage raised; names the rank and the action. The other ranks raise it too, as a TransportError.
            An InputError, such as a cap that is too small, stays one, on all ranks.
        TransportTimeout, PeerFailed: as the communicator's messages.
        After any but a plan that does not fit the communicator, the communicator is closed.

    Cost: buffers for all messages that the rank receives in an iteration, taken at its beginning.
    """
    _check_fits(checked, comm)
    plane = plane or Inline(comm)
    try:
        return _IterationRun(checked, stages, comm, plane, timeout_s, after, ready_first_s).iteration(inputs, targets)
    except LanterneError as error:
        plane.fail(error)
        core_of(comm).fail(error)
        raise


def _check_fits(checked: CheckedPlan, comm: Communicator) -> None:
    if not isinstance(checked, CheckedPlan):
        raise InputError(f"execute: got a {type(checked).__name__}, expected a CheckedPlan, which check() gives")
    if checked.plan.placement.num_ranks != comm.world_size:
        raise InputError(
            f"execute: got a plan for {checked.plan.placement.num_ranks} ranks on {comm.world_size}, expected as many"
        )


class _IterationRun:
    """One iteration on one rank."""

    def __init__(
        self,
        checked: CheckedPlan,
        stages: Mapping[int, Stage],
        comm: Communicator,
        plane: DataPlane,
        timeout_s: float | None,
        after: After | None,
        ready_first_s: float | None,
    ) -> None:
        self.plan = checked.plan
        self.rule: ReadyFirst | None = None
        if ready_first_s is not None:
            self.rule = ReadyFirst(checked, simulate(checked, checked.problem), comm.rank)
        self.unit_s = ready_first_s or 0.0
        self.stages = stages
        self.comm = comm
        self.plane = plane
        self.timeout_s = timeout_s
        self.after = after
        held = self.plan.placement.stages_of(comm.rank)
        if sorted(stages) != list(held):
            raise InputError(f"execute: got stages {sorted(stages)} on rank {comm.rank}, expected {list(held)}")
        # Columns: which each waits for, -1 for none; and which waits for each.
        self.sender: list[int] = senders_of(self.plan, costs(checked.problem, self.plan.placement)).tolist()
        self.receiver = {sender: column for column, sender in enumerate(self.sender) if sender >= 0}
        # By the column that waits: results of this rank's own actions, and messages to come, with their sending rank.
        self.here: dict[int, Message] = {}
        self.receives: dict[int, tuple[Receive, int]] = {}
        # By (stage, microbatch): what W may read.
        self.read: dict[tuple[int, int], list[StageArray]] = {}

    def iteration(self, inputs: Samples, targets: Samples) -> Measured:
        rank, plan = self.comm.rank, self.plan
        actions, first = plan.ranks[rank], int(plan.offsets[rank])
        ready_s, start_s, end_s = (np.empty(len(actions)) for _ in range(3))
        sent_s, (waited, blocked) = np.full(len(actions), np.nan), np.zeros((2, len(actions)), bool)
        self.post_receives()
        for stage in self.stages.values():
            self.call("begin", stage.begin, plan.microbatches, inputs, targets)
        for index, was_idle in self.columns(first, len(actions)):
            action = actions[index]
            stage = self.stages[action.stage]
            given, waited[index] = self.take(first + index, action)
            if was_idle and not waited[index]:
                waited[index] = self.sender[first + index] >= 0
                stage.waited()
            ready_s[index] = time.monotonic()
            lent, peer = self.lend(first + index)
            start_s[index] = time.monotonic()
            result = self.perform(action, given, lent)
            end_s[index] = time.monotonic()
            if KINDS.index(action.kind) in LAST_KINDS and action.part == action.parts:
                self.release(action)
            if peer is not None:
                assert result is not None
                blocked[index] = self.plane.send(result, peer, self.timeout_s)
                sent_s[index] = time.monotonic()
                if blocked[index]:
                    stage.waited()
            elif first + index in self.receiver:
                self.here[self.receiver[first + index]] = result
            if self.rule is not None:
                self.rule.end(first + index)
            if self.after is not None:
                self.after(action)
        self.plane.finish(self.timeout_s)
        return Measured(rank, actions, ready_s, waited, start_s, end_s, sent_s, blocked)

    def columns(self, first: int, count: int) -> Iterator[tuple[int, bool]]:
        """The rank's actions by number, in the order in which to run them, and whether it had nothing to do before."""
        if self.rule is None:
            yield from ((index, False) for index in range(count))
            return
        began_s = time.monotonic()
        timeout_s = core_of(self.comm).timeout_s if self.timeout_s is None else self.timeout_s
        for _ in range(count):
            since_s = now_s = time.monotonic()
            while True:
                now, since = ((at_s - began_s) / self.unit_s for at_s in (now_s, since_s))
                picked = self.rule.pick(now, since, self.is_here)
                if isinstance(picked, int):
                    break
                if now_s - since_s > timeout_s:
                    picked = self.rule.left[0]  # Whose wait names who did not send.
                    break
                os.sched_yield()
                now_s = time.monotonic()
            self.rule.begin(picked)
            yield picked - first, now_s > since_s

    def is_here(self, column: int) -> bool:
        """Whether what the action of `column` waits for is there."""
        if self.sender[column] < 0 or column in self.here:
            return True
        return column in self.receives and self.receives[column][0].test()

    def post_receives(self) -> None:
        """Post the receives of the whole iteration, those from one rank in the order in which it sends."""
        rank_of, rank = self.plan.rank_of, self.comm.rank
        for sender, column in sorted(self.receiver.items()):
            peer = int(rank_of[sender])
            if peer != rank and rank_of[column] == rank:
                self.receives[column] = self.plane.receive(*self.message(column, received=True), peer), peer

    def message(self, column: int, *, received: bool) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """(shape, dtype) of what the action of `column` on this rank receives, or else sends."""
        action = self.plan.ranks[self.comm.rank][column - int(self.plan.offsets[self.comm.rank])]
        stage = self.stages[action.stage]
        forward = action.kind == "F"
        shape = stage.input_shape if forward == received else stage.output_shape
        assert shape is not None
        return shape, stage.dtype

    def take(self, column: int, action: Action) -> tuple[Message, bool]:
        """What the action of `column` waits for, once it is there, None if it waits for nothing; whether it waited."""
        if self.sender[column] < 0:
            return None, False
        if column in self.here:
            return self.here.pop(column), False
        receive, peer = self.receives.pop(column)
        waited = not receive.test()
        try:
            buffer = receive.wait(self.timeout_s)
        except TransportTimeout as error:
            place = f"pipeline rank {self.comm.rank}, {action}, which waits for rank {peer}"
            raise TransportTimeout(f"{place}: {error}", (peer,)) from error
        if waited:
            self.stages[action.stage].waited()
        self.read.setdefault((action.stage, action.microbatch), []).append(buffer)
        return buffer, waited

    def release(self, action: Action) -> None:
        """The last action of a microbatch on a stage has ended: its messages may be overwritten."""
        for buffer in self.read.pop((action.stage, action.microbatch), ()):
            self.plane.release(buffer)

    def lend(self, column: int) -> tuple[StageArray, int] | tuple[None, None]:
        """(the buffer, the rank) for what the action of `column` sends to another rank; (None, None) if it does not."""
        peer = int(self.plan.rank_of[self.receiver.get(column, column)])
        if peer == self.comm.rank:
            return None, None
        return self.plane.lend(*self.message(column, received=False), peer), peer

    def perform(self, action: Action, given: Message, lent: Message) -> Message:
        """Call the stage; what it returns goes to the next one."""
        kind, stage, microbatch, part, parts = action
        held, result = self.stages[stage], None
        if kind == "F":
            result = self.call(action, held.forward, microbatch, given, lent, part, parts)
        if kind == "B":
            result = self.call(action, held.backward_input, microbatch, given, lent, part, parts)
        if kind == "W":
            self.call(action, held.backward_weight, microbatch, part, parts)
        if kind == "BW":
            result = self.call(action, held.backward, microbatch, given, lent, part, parts)
        return result

    def call(self, what: object, function: Callable[..., Result], *args: Any) -> Result:
        """function(*args), an exception of which becomes a LanterneError that names the place."""
        try:
            return function(*args)
        except InputError as error:
            raise InputError(f"pipeline rank {self.comm.rank}, {what}: {error}") from error
        except Exception as error:
            place = f"pipeline rank {self.comm.rank}, {what}"
            raise LanterneError(f"{place}: {type(error).__name__}: {error}") from error
