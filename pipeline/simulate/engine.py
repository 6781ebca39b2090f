"""The inner loops of the simulator: plain lists, no objects.

Both take `orders`, a list of ids per rank, and the Tables of these ids (see costs.Costs.lists), and return
    starts: per rank the list of start times; shorter than its order where the rank never got further (a deadlock);
    full: per slot when it was filled, -1 for never.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Protocol

from lanterne.pipeline.plan.costs import Tables


def flow(
    orders: Sequence[Sequence[int]], tables: Tables, initial: Sequence[float], num_links: int
) -> tuple[list[list[float]], list[float]]:
    """Run each rank as far as it goes, then those that it woke: exact where every link has one sending rank.

    Messages of a rank then take a link in the order in which it sends them, whatever the others do, so all times are
    sums and maxima over a fixed graph: no event queue is needed, and no time can fall when a duration or a delay grows.

    Cost: about 0.3 us per action.
    """
    duration, slot, target, latency, occupancy, link = tables
    full = list(initial)
    asleep: dict[int, int] = {}
    busy_until = [0.0] * num_links
    starts: list[list[float]] = [[] for _ in orders]
    clock = [0.0] * len(orders)
    awake = list(range(len(orders)))
    while awake:
        rank = awake.pop()
        order, begun, now = orders[rank], starts[rank], clock[rank]
        for i in range(len(begun), len(order)):
            action = order[i]
            ready = full[slot[action]]
            if ready > now:
                now = ready
            elif ready < 0.0:
                asleep[slot[action]] = rank
                break
            begun.append(now)
            now += duration[action]
            filled = target[action]
            if filled >= 0:
                leaves = now
                if occupancy[action]:
                    used = link[action]
                    leaves = max(leaves, busy_until[used]) + occupancy[action]
                    busy_until[used] = leaves
                full[filled] = leaves + latency[action]
                if filled in asleep:
                    awake.append(asleep.pop(filled))
        clock[rank] = now
    return starts, full


ENDED, JOINS, ARRIVES, LOOKS = range(4)


class ReadyRule(Protocol):
    """What a rank does next where it does not go by its order alone; see ready_first.ReadyFirst."""

    def pick(self, now: float, since: float, is_here: Callable[[int], bool]) -> int | float | None: ...

    def begin(self, column: int) -> None: ...

    def end(self, column: int) -> None: ...


class Events:
    """The same in order of time, for links that several ranks send on, fixed message orders, and in-order
    communication.

    Args:
        queue: sends that a rank may have under way, each taking its turn; 0 for sends that return when their message
            has arrived, None for communication that never blocks.
        turns: link -> the ids of its messages in the order in which they take it; a link not in it takes them as they
            come, of those that come at one time the lowest rank's first.
        rules: one per rank, that choose what it does next; `ran` then holds what each did, in order.

    Cost: about 2 us per action.
    """

    def __init__(
        self,
        orders: Sequence[Sequence[int]],
        tables: Tables,
        initial: Sequence[float],
        num_links: int,
        queue: int | None = None,
        turns: Mapping[int, Sequence[int]] | None = None,
        rules: Sequence[ReadyRule] | None = None,
    ) -> None:
        self.orders = orders
        self.tables = tables
        self.queue = queue
        self.full: list[float] = list(initial)
        self.starts: list[list[float]] = [[] for _ in orders]
        self.clock: list[float] = [0.0] * len(orders)
        self.asleep: dict[int, int] = {}
        self.busy_until: list[float] = [0.0] * num_links
        self.turns: dict[int, deque[int]] = {used: deque(ids) for used, ids in (turns or {}).items()}
        self.early: dict[int, dict[int, int]] = {used: {} for used in self.turns}
        self.sending: list[deque[int]] = [deque() for _ in orders]
        self.blocked: list[int | None] = [None] * len(orders)
        self.heap: list[tuple[float, int, int, int]] = []
        slot = tables.slot
        self.rules = rules
        self.ran: list[list[int]] = [[] for _ in orders]
        self.busy: list[bool] = [False] * len(orders)
        self.receiver: dict[int, int] = {slot[action]: rank for rank, order in enumerate(orders) for action in order}

    def run(self) -> tuple[list[list[float]], list[float]]:
        """`starts` and `full` as above."""
        for rank in range(len(self.orders)):
            self._go_on(rank)
        while self.heap:
            now, what, rank, action = heappop(self.heap)
            if what == ENDED:
                self._ended(now, rank, action)
            elif what == LOOKS:
                self._look(now, rank)
            elif what == JOINS:
                self._joins(now, rank, action)
            else:
                self._arrives(now, rank)
        return self.starts, self.full

    def _go_on(self, rank: int) -> None:
        """Start the rank's next action, now or when what it waits for is there."""
        if self.rules is not None:
            heappush(self.heap, (self.clock[rank], LOOKS, rank, -1))
            return
        slot = self.tables.slot
        i = len(self.starts[rank])
        if i == len(self.orders[rank]):
            return
        action = self.orders[rank][i]
        ready = self.full[slot[action]]
        if ready < 0.0:
            self.asleep[slot[action]] = rank
            return
        begins = max(self.clock[rank], ready)
        self.starts[rank].append(begins)
        self.clock[rank] = begins + self.tables.duration[action]
        heappush(self.heap, (self.clock[rank], ENDED, rank, action))

    def _look(self, now: float, rank: int) -> None:
        """Let an idle rank's rule choose."""
        if self.rules is None or self.busy[rank]:
            return
        rule, slot = self.rules[rank], self.tables.slot
        picked = rule.pick(now, self.clock[rank], lambda action: 0.0 <= self.full[slot[action]] <= now)
        if isinstance(picked, float):
            heappush(self.heap, (picked, LOOKS, rank, -1))
        elif picked is not None:
            rule.begin(picked)
            self.busy[rank] = True
            self.ran[rank].append(picked)
            self.starts[rank].append(now)
            self.clock[rank] = now + self.tables.duration[picked]
            heappush(self.heap, (self.clock[rank], ENDED, rank, picked))

    def _ended(self, now: float, rank: int, action: int) -> None:
        if self.rules is not None:
            self.rules[rank].end(action)
            self.busy[rank] = False
        filled = self.tables.target[action]
        if filled < 0 or self.receiver.get(filled, rank) == rank:
            if filled >= 0:
                self._fill(filled, now)
        elif self.queue is None:
            heappush(self.heap, (now, JOINS, rank, action))
        elif self.queue == 0:
            self._issue(now, rank, action)
            return
        elif len(self.sending[rank]) == self.queue:
            self.blocked[rank] = action
            return
        else:
            self._issue(now, rank, action)
        self._go_on(rank)

    def _issue(self, now: float, rank: int, action: int) -> None:
        self.sending[rank].append(action)
        if len(self.sending[rank]) == 1:
            heappush(self.heap, (now, JOINS, rank, action))

    def _joins(self, now: float, rank: int, action: int) -> None:
        """A message is at the head of its link, or must wait until those before it have come."""
        used = self.tables.link[action]
        if used not in self.turns:
            self._transmit(now, rank, action)
            return
        turns, early = self.turns[used], self.early[used]
        early[action] = rank
        while turns and turns[0] in early:
            message = turns.popleft()
            self._transmit(now, early.pop(message), message)

    def _transmit(self, now: float, rank: int, action: int) -> None:
        _, _, target, latency, occupancy, link = self.tables
        leaves = now
        if occupancy[action]:
            leaves = max(now, self.busy_until[link[action]]) + occupancy[action]
            self.busy_until[link[action]] = leaves
        arrives = leaves + latency[action]
        self._fill(target[action], arrives)
        if self.queue is not None:
            heappush(self.heap, (arrives, ARRIVES, rank, action))

    def _arrives(self, now: float, rank: int) -> None:
        """With a bounded queue: the rank's next message may go, and the rank may compute again if it was blocked."""
        sending = self.sending[rank]
        sending.popleft()
        if sending:
            heappush(self.heap, (now, JOINS, rank, sending[0]))
        action = self.blocked[rank]
        if action is not None:
            self.blocked[rank] = None
            self._issue(now, rank, action)
        elif self.queue:
            return
        self.clock[rank] = now
        self._go_on(rank)

    def _fill(self, filled: int, at: float) -> None:
        self.full[filled] = at
        if self.rules is not None:
            heappush(self.heap, (at, LOOKS, self.receiver[filled], -1))
        elif filled in self.asleep:
            self._go_on(self.asleep.pop(filled))
