"""An all-reduce whose rounds are made while it runs: by then it is known who takes part in them (any_arrival).

GrowingRounds is one rank's part of the rounds so far, as actions. GrowingExecution runs them, and has the next rounds
made when few are left, as far as the board lets it.
"""

from collections import deque
from collections.abc import Sequence

from lanterne.collectives.algorithms.hierarchical.compose import Nodes
from lanterne.collectives.auto.pacing import NEIGHBOUR_CREDITS
from lanterne.collectives.execute.compile_program import RoundCompiler
from lanterne.collectives.execute.executor import Execution, first_order
from lanterne.collectives.execute.messages import MessageCutter
from lanterne.collectives.execute.rank_program import Message, RankProgram
from lanterne.collectives.execute.scratch import Scratch, Slots
from lanterne.collectives.schedule.chunk_layout import PartCount
from lanterne.collectives.schedule.ir import ScheduleBuilder
from lanterne.kernels.dtypes import Dtype
from lanterne.transport.base import Transport

# Once all ranks are there a rank has so many rounds made more than it has done.
AHEAD = 8
# After so many rounds without a transfer there is none until the next rank joins.
IDLE_ROUNDS = 2


class GrowingRounds:
    """What the rounds so far ask of `rank`.

    Args:
        nodes: the ranks that share a port, as many on each; all ranks of the call.
        num_chunks: of each rail (any_arrival_nodes.py).
        segment_nbytes, credits, in_place: as of compile_program.
        mean: divide complete sums by world_size.

    Attributes:
        actions: so far.
        events: for each, the actions that it waits for.
        ends: for each round, how many actions there are up to its end.
        empty: a RankProgram without actions, of the same arrays and scratch memory.
        is_idle: whether nothing happens until the next rank joins.

    Cost: some 0.2 ms a round, of 8 ranks.
    """

    def __init__(
        self,
        rank: int,
        nodes: Nodes,
        num_chunks: int,
        part_count: PartCount,
        itemsize: int,
        *,
        segment_nbytes: int,
        credits: int | None,
        in_place: bool,
        mean: bool,
    ) -> None:
        from lanterne.collectives.algorithms.late.any_arrival_nodes import NodeRounds

        rails, world_size = len(nodes[0]), sum(map(len, nodes))
        cutter = MessageCutter(
            ScheduleBuilder("all_reduce", "any_arrival", world_size, num_chunks * rails).build(),
            part_count,
            itemsize,
            segment_nbytes,
        )
        cells = (cell for chunk in range(num_chunks * rails) for cell in cutter.cells(chunk))
        # A rank receives one chunk a step at most.
        slots = Slots([(cell.stop - cell.start) * itemsize] for cell in cells)
        self._compiler = RoundCompiler(cutter, rank, itemsize, in_place, {}, slots)
        self._rounds = NodeRounds(nodes, num_chunks * rails)
        self._cutter, self._rank, self._credits, self._mean = cutter, rank, credits, mean
        # Ranks that will join, with the round of each.
        self._joins: deque[tuple[int, int]] = deque()
        self._idle = 0
        self._steps = 0
        beside = next(ranks for ranks in nodes if rank in ranks)
        # The latest receives and sends: of other nodes, and of each rank beside this one.
        self._latest: dict[tuple[bool, int], deque[int]] = {}
        for sends in (False, True):
            self._latest[sends, -1] = deque(maxlen=credits)
            self._latest |= {(sends, peer): deque(maxlen=NEIGHBOUR_CREDITS) for peer in beside}
        self.actions = self._compiler.log.actions
        self.events = self._compiler.log.events
        self.ends: list[int] = []
        totals = self._compiler.cells.totals
        self.empty = RankProgram((), (), (), (), totals[0], totals[1], slots.least_nbytes, (), 0)

    def take_in(self, joins: Sequence[tuple[int, int]]) -> None:
        """Take in all (rank, round from which on it takes part), in order; those that were known come first."""
        self._joins.extend(joins[self._rounds.present + len(self._joins) :])

    @property
    def is_done(self) -> bool:
        """Whether all ranks have all results after the rounds so far."""
        return self._rounds.is_done

    @property
    def is_idle(self) -> bool:
        """Whether nothing happens in the next rounds unless another rank joins."""
        return self._idle >= IDLE_ROUNDS

    def add_round(self) -> None:
        """Make the next round, and add what it asks of this rank."""
        rounds = self._rounds
        while self._joins and self._joins[0][1] <= rounds.number:
            rounds.arrive(self._joins.popleft()[0])
            self._idle = 0
        steps = rounds.round()
        self._idle = 0 if steps else self._idle + 1
        for step in steps:
            named = ((self._steps, index, *transfer[:4]) for index, transfer in enumerate(step))
            mine = [each for each in named if self._rank in each[2:4]]
            if mine:
                completes = [self._mean and transfer[4] for transfer in step]
                self._compiler.add_round(self._steps, sorted(self._cutter.parts(self._rank, mine)), completes)
            self._steps += 1
        self._limit()
        self.ends.append(len(self.actions))

    def _limit(self) -> None:
        """Let no more receives, and sends, of the actions of the last round be posted at once than credits allow."""
        for index in range(self.ends[-1] if self.ends else 0, len(self.actions)):
            action = self.actions[index]
            if type(action) is Message and self._credits is not None:
                lane = action.sends, action.peer
                latest = self._latest[lane if lane in self._latest else (action.sends, -1)]
                if len(latest) == latest.maxlen:
                    self.events[index].add(latest[0])
                latest.append(index)


class GrowingExecution(Execution):
    """One call whose rounds are made while it runs; never used again.

    Args:
        ahead: how many rounds more than the slowest rank has done the board grants.
    """

    def __init__(
        self,
        rounds: GrowingRounds,
        transport: Transport,
        scratch: Scratch,
        ranks: Sequence[int],
        tag: int,
        op: str | None,
        dtype: Dtype,
        ahead: int,
    ) -> None:
        super().__init__(rounds.empty, transport, scratch, ranks, tag, op, dtype)
        self._rounds = rounds
        self._followers: list[list[int]] = []
        self._successors = self._followers
        self._following_posts: list[int] = []
        self._next_post = self._following_posts
        # By action, whether it is complete; by lane, the last message.
        self._complete: list[bool] = []
        self._last: dict[tuple[bool, int], int] = {}
        self._first_open = 0
        # How many rounds may be begun; None: all, since all ranks have arrived.
        self._granted: int | None = 0
        # Rounds that are complete here, those of them that were reported, and how many are reported together.
        self._done = 0
        self._reported = 0
        self._step_rounds = max(1, ahead // 2)

    def go_on(self, joins: Sequence[tuple[int, int]], granted: int | None) -> None:
        """Take part with the ranks of `joins`, (rank, its first round) in order, in `granted` rounds; None: in all."""
        self._rounds.take_in(joins)
        self._granted = granted

    def progress(self) -> int | None:
        """Return how many rounds are complete here, if the board does not know and waits for it; else None."""
        if self._granted is None or self._rounds.is_idle or self._done == self._reported:
            return None
        if self._done < min(self._granted, self._reported + self._step_rounds):
            return None
        self._reported = self._done
        return self._done

    @property
    def left(self) -> float:
        """See Execution.left: 1 or 0 as long as ranks are missing; later, by rounds that are not complete."""
        if self._granted is not None:
            return float(not self._is_settled)
        return 1.0 if not self._rounds.is_done else float(self._done < len(self._rounds.ends) - AHEAD)

    @property
    def drained(self) -> bool:
        """Whether all rounds that may be begun are complete, so that the call may be given up."""
        return self._is_settled and super().drained

    @property
    def _is_settled(self) -> bool:
        return not self.remaining and len(self._rounds.ends) >= (self._granted or 0)

    def advance(self) -> bool:
        """As Execution.advance; has rounds made when few are left."""
        super().advance()
        self._count_done()
        rounds = self._rounds
        while not rounds.is_done and len(rounds.ends) < self._most:
            rounds.add_round()
            self._extend()
            self._count_done()
        return rounds.is_done and not self.remaining

    @property
    def _most(self) -> int:
        """How many rounds may be made now."""
        ahead = self._done + AHEAD
        return ahead if self._granted is None else min(ahead, self._granted)

    def _count_done(self) -> None:
        complete, ends = self._complete, self._rounds.ends
        while self._first_open < len(complete) and complete[self._first_open]:
            self._first_open += 1
        while self._done < len(ends) and ends[self._done] <= self._first_open:
            self._done += 1

    def _finish(self, index: int, run: bool = False) -> None:
        self._complete[index] = True
        super()._finish(index, run)

    def _extend(self) -> None:
        """Take in the actions of the last round."""
        actions, complete, waits = self._rounds.actions, self._complete, self._waits
        first = len(self._steps)
        for index in range(first, len(actions)):
            action, count = actions[index], 0
            complete.append(False)
            self._followers.append([])
            self._following_posts.append(-1)
            for event in self._rounds.events[index]:
                if not complete[event]:
                    self._followers[event].append(index)
                    count += 1
            if type(action) is Message:
                lane = action.sends, action.peer
                if lane not in self._lanes:
                    queue = self._lanes[lane] = deque()
                    self._queues.insert(len(self._queues) if action.sends else 0, queue)
                before = self._last.get(lane, -1)
                # A message that waits for nothing has been posted, or is about to be.
                if before >= 0 and waits[before]:
                    self._following_posts[before] = index
                    count += 1
                self._last[lane] = index
                self._messages += 1
                self._unposted += 1
            self._steps.append(self._step(action))
            waits.append(count)
        self.remaining += len(actions) - first
        ready = [index for index in range(first, len(actions)) if not waits[index]]
        self._begin(sorted(ready, key=lambda index: first_order(actions[index])))
