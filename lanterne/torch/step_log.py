"""What a rank notes of its all_reduces, step by step of a training loop; a step ends with that of an optimizer."""

import weakref
from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lanterne.collectives.communicator import Communicator
from lanterne.errors import LanterneError
from lanterne.torch.torch_internals import after_each_step
from lanterne.transport.machine import THIS_MACHINE

# Steps that are kept.
MAX_STEPS = 10_000


class LateStep(NamedTuple):
    """One step of this rank's.

    Attributes:
        step: counted from 0, since the first group was made.
        calls, nbytes: all_reduces of this step that were seen to the end, and what they summed.
        begun_early: those which the others began without the last rank, of those the board has told of by now.
        late_rank: global rank that came last to most of them; None: nothing is known of this step.
        late_s: how long after the others that came, at most.
        own_s: from the first call of this rank to the end of the last.
        ordinary_s: what the cost model says these calls take, one after the other, once all ranks are there.
        saved_s: on the late rank, where others began early: `ordinary_s - own_s`, what the early start saved; else
            None.
    """

    step: int
    calls: int
    nbytes: int
    begun_early: int
    late_rank: int | None
    late_s: float
    own_s: float
    ordinary_s: float
    saved_s: float | None


class StepLog:
    """What one rank notes of the all_reduces of one group, step by step."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._steps: deque[LateStep] = deque(maxlen=MAX_STEPS)
        self._seen = 0
        self._number = _steps_so_far()
        self._begin()
        _open.add(self)

    def _begin(self) -> None:
        self._calls = self._nbytes = 0
        self._first_s = self._last_s = 0.0
        self._ordinary_s = 0.0

    def begins(self, nbytes: int) -> None:
        """An all_reduce of `nbytes` begins. Some 2 us."""
        if not self._calls:
            self._first_s = THIS_MACHINE.now_s()
        self._calls += 1
        self._nbytes += nbytes
        tuning = self._communicator.tuning
        if tuning.model is not None and self._communicator.world_size > 1 and nbytes:
            self._ordinary_s += tuning.ordinary_s("all_reduce", nbytes)

    def ends(self) -> None:
        """One has ended."""
        self._last_s = THIS_MACHINE.now_s()

    def cut(self) -> None:
        """A step is over."""
        number, self._number = self._number, self._number + 1
        if not self._calls:
            return
        try:
            arrivals = self._communicator.arrivals(self._seen)
        except LanterneError:
            return  # The group has ended.
        self._seen = arrivals.calls
        late_rank, late_s = _latest(arrivals.ranks, arrivals.delays_s)
        comm, own_s = self._communicator, max(0.0, self._last_s - self._first_s)
        saves = late_rank == comm.rank and arrivals.begun_early and self._ordinary_s
        self._steps.append(
            LateStep(
                *(number, self._calls, self._nbytes, arrivals.begun_early),
                None if late_rank is None else comm.ranks[late_rank],
                *(late_s, own_s, self._ordinary_s),
                self._ordinary_s - own_s if saves else None,
            )
        )
        self._begin()

    def steps(self, last: int | None) -> tuple[LateStep, ...]:
        """The `last` steps, oldest first; None: all that are kept."""
        return tuple(self._steps)[-last if last else None :]


def _latest(ranks: NDArray[np.int64], delays_s: NDArray[np.float64]) -> tuple[int | None, float]:
    """(who came last by most, all calls together; by how much at most) of calls to which `ranks` came last."""
    if not len(ranks):
        return None, 0.0
    late = int(np.bincount(ranks, delays_s).argmax())
    return late, float(delays_s[ranks == late].max())


_open: "weakref.WeakSet[StepLog]" = weakref.WeakSet()


def _steps_so_far() -> int:
    return max((log._number for log in _open), default=0)


def _cut_all(*_: object) -> None:
    for log in list(_open):
        log.cut()


after_each_step(_cut_all)
