"""Operations that wait for any number of others, as operations of the event loop, which wait for one each.

Whatever runs in an order that is fixed beforehand (kernels on streams, messages of one pair, calls that block) is such
a set. Its times are maxima of sums, but for links that serve whoever comes first: none falls when a duration grows.
"""

from collections.abc import Sequence

import numpy as np

from lanterne.errors import ScheduleError
from lanterne.pipeline.plan.costs import Floats, Ints
from lanterne.pipeline.simulate.event_loop import FIRST_COME, Operations
from lanterne.pipeline.simulate.program import Program, run_program


class Precedences:
    """Operations, each to begin when some have begun and some have ended.

    The duration of each is its own plus a term that it shares with others: of `times`, term 0 is always 0.
    """

    def __init__(self) -> None:
        self._own: list[float] = []
        self._term: list[int] = []
        self._queue: list[int] = []
        # (operation that waits, operation waited for), for the end or for the beginning of the latter.
        self._ended: list[tuple[int, int]] = []
        self._begun: list[tuple[int, int]] = []
        self._made: tuple[Program, Ints] | None = None

    def add(
        self,
        duration: float = 0.0,
        *ended: int | None,
        begun: Sequence[int | None] = (),
        term: int = 0,
        queue: int | None = None,
    ) -> int:
        """Add an operation and return its number; it begins once those `ended` and those `begun` have.

        Args:
            queue: a link that does one operation at a time, first come, first served. The operation waits for one, and
                one waits for it.
        """
        number = len(self._own)
        self._own.append(duration)
        self._term.append(term)
        self._queue.append(-1 if queue is None else queue)
        self.wait(number, *ended, begun=begun)
        return number

    def wait(self, operation: int, *ended: int | None, begun: Sequence[int | None] = ()) -> None:
        """Let `operation` wait for more; None stands for no operation."""
        self._ended += [(operation, first) for first in ended if first is not None]
        self._begun += [(operation, first) for first in begun if first is not None]
        self._made = None

    def times(self, terms: Sequence[float] = (0.0,)) -> tuple[Floats, Floats]:
        """Return (starts, ends), each (num_operations,) float64.

        Raises:
            ScheduleError: operations wait for each other in a circle.

        Cost: some 1 us per operation.
        """
        if self._made is None:
            self._made = self._lowered()
        program, rows = self._made
        duration = np.zeros(len(program.operations.lane))
        duration[rows] = np.array(self._own) + np.array(terms)[self._term]
        ran = run_program(program._replace(operations=program.operations._replace(duration=duration)))
        if ran.left.any():
            raise ScheduleError("plan: got orders in which ranks wait for each other, expected one that can run")
        return ran.begun[rows], ran.ended[rows]

    def _lowered(self) -> tuple[Program, Ints]:
        """Return a program, and the row of each operation in it.

        An operation follows another on its lane if it waits for the end of that and none does so yet, else it has a
        lane of its own. Rows of no duration precede it, one for each other wait but the last, and follow it, one for
        each signal of its end but the first. Signals of its beginning come from the last row that waits for something,
        and from more rows behind that.
        """
        count, begun = len(self._own), len(self._begun)
        follows: dict[int, int] = {}
        followed: set[int] = set()
        ended = []
        # What joins a queue keeps its lane: messages that join together go in the order of lanes.
        alone = {each for pair in self._ended if self._queue[pair[0]] >= 0 for each in pair}
        for operation, other in self._ended:
            is_alone = operation in alone or self._queue[other] >= 0
            if other < operation and not is_alone and operation not in follows and other not in followed:
                follows[operation] = other
                followed.add(other)
            else:
                ended.append((operation, other))
        lanes = list(range(count))
        for operation in sorted(follows):
            lanes[operation] = lanes[follows[operation]]
        waits, first = np.array(self._begun + ended, np.int64).reshape(-1, 2).T
        num_waits, num_begun, num_ended = (
            np.bincount(each, minlength=count) for each in (waits, first[:begun], first[begun:])
        )
        before = np.where(num_begun, np.maximum(num_waits, 1) + num_begun, num_waits) - 1
        before = np.maximum(before, 0)
        rows = before + np.maximum(num_ended, 1)
        start = np.cumsum(rows) - rows
        waiting = start[waits] + _places(waits)
        begins = (start + np.maximum(num_waits, 1) - 1)[first[:begun]] + _places(first[:begun])
        ends = (start + before)[first[begun:]] + _places(first[begun:])
        signals = np.concatenate([begins, ends])
        source, target = np.full((2, int(rows.sum())), -1)
        source[waiting], target[signals] = signals, waiting
        lane, queue = np.repeat(lanes, rows), np.array(self._queue)
        lane[(start + before)[queue >= 0]] = count + queue[queue >= 0]
        none, link = np.zeros(len(lane)), np.full(len(lane), -1)
        operations = Operations(lane, source, target, np.arange(len(lane)), none, link, none, none, none)
        program = Program.of_lanes(operations, count + int(queue.max(initial=-1)) + 1)
        program.kinds[count:] = FIRST_COME
        return program, start + before


class PlanPrecedences(Precedences):
    """The actions of a plan, each rank's in order, and what is added of the messages between ranks.

    Attributes:
        moves: row that sends -> the operation that occupies the link; the next one ends when the message arrives.
    """

    def __init__(self, operations: Operations) -> None:
        super().__init__()
        self.moves: dict[int, int] = {}
        self._operations = operations
        lane, source = operations.lane.tolist(), operations.source.tolist()
        for row, duration in enumerate(operations.duration.tolist()):
            self.add(duration, row - 1 if row and lane[row - 1] == lane[row] else None)
        for row, sender in enumerate(source):
            if sender >= 0 and lane[sender] == lane[row]:
                self.wait(row, sender)

    def send(self, row: int, *ended: int | None, queue: int | None = None) -> int:
        """Add the message of `row`, which begins once those `ended` have; return the operation that is its arrival."""
        given = self._operations
        self.moves[row] = self.add(float(given.occupancy[row]), *ended, queue=queue)
        arrives = self.add(float(given.latency[row]), self.moves[row])
        self.wait(int(given.target[row]), arrives)
        return arrives

    def starts_and_arrivals(self) -> tuple[Floats, Floats]:
        """Return (num_rows,) each: when rows start, and when what they wait for from another arrives; 0 for nothing."""
        starts, ends = self.times()
        source = self._operations.source
        arrivals = np.arange(len(ends))
        arrivals[list(self.moves)] = np.array(list(self.moves.values()), np.int64) + 1
        return starts[: len(source)], np.where(source >= 0, ends[arrivals[source]], 0.0)


def _places(values: Ints) -> Ints:
    """Return for each of `values` how many equal ones lie before it."""
    order = np.argsort(values, kind="stable")
    places = np.empty(len(values), np.int64)
    ordered = values[order]
    places[order] = np.arange(len(values)) - np.searchsorted(ordered, ordered)
    return places
