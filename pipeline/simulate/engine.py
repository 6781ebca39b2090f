"""The inner loops of the simulator: plain lists, no objects.

Both take `orders`, a list of ids per rank, and tables of lists indexed by id (see costs.Costs.lists), and return
    starts: per rank the list of start times; shorter than its order where the rank never got further (a deadlock);
    full: per slot when it was filled, -1 for never.
"""

from collections import deque
from heapq import heappop, heappush


def flow(orders, tables, initial, num_links):
    """Run each rank as far as it goes, then those that it woke: exact where every link has one sending rank.

    Messages of a rank then take a link in the order in which it sends them, whatever the others do, so all times are
    sums and maxima over a fixed graph: no event queue is needed, and no time can fall when a duration or a delay grows.

    Cost: about 0.3 us per action.
    """
    duration, slot, target, latency, occupancy, link = tables
    full = list(initial)
    asleep = {}
    busy_until = [0.0] * num_links
    starts = [[] for _ in orders]
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


ENDED, JOINS, ARRIVES = range(3)


class Events:
    """The same in order of time, for links that several ranks send on, fixed message orders, and in-order
    communication.

    Args:
        queue: sends that a rank may have under way, each taking its turn; 0 for sends that return when their message
            has arrived, None for communication that never blocks.
        turns: link -> the ids of its messages in the order in which they take it; a link not in it takes them as they
            come, of those that come at one time the lowest rank's first.

    Cost: about 2 us per action.
    """

    def __init__(self, orders, tables, initial, num_links, queue=None, turns=None):
        self.orders, self.tables, self.queue = orders, tables, queue
        self.full = list(initial)
        self.starts = [[] for _ in orders]
        self.clock = [0.0] * len(orders)
        self.asleep = {}
        self.busy_until = [0.0] * num_links
        self.turns = {used: deque(ids) for used, ids in (turns or {}).items()}
        self.early = {used: {} for used in self.turns}
        self.sending = [deque() for _ in orders]
        self.blocked = [None] * len(orders)
        self.heap = []
        self.receiver = {tables[1][action]: rank for rank, order in enumerate(orders) for action in order}

    def run(self):
        """`starts` and `full` as above."""
        for rank in range(len(self.orders)):
            self._go_on(rank)
        while self.heap:
            now, what, rank, action = heappop(self.heap)
            if what == ENDED:
                self._ended(now, rank, action)
            elif what == JOINS:
                self._joins(now, rank, action)
            else:
                self._arrives(now, rank)
        return self.starts, self.full

    def _go_on(self, rank):
        """Start the rank's next action, now or when what it waits for is there."""
        duration, slot = self.tables[:2]
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
        self.clock[rank] = begins + duration[action]
        heappush(self.heap, (self.clock[rank], ENDED, rank, action))

    def _ended(self, now, rank, action):
        filled = self.tables[2][action]
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

    def _issue(self, now, rank, action):
        self.sending[rank].append(action)
        if len(self.sending[rank]) == 1:
            heappush(self.heap, (now, JOINS, rank, action))

    def _joins(self, now, rank, action):
        """A message is at the head of its link, or must wait until those before it have come."""
        used = self.tables[5][action]
        if used not in self.turns:
            self._transmit(now, rank, action)
            return
        turns, early = self.turns[used], self.early[used]
        early[action] = rank
        while turns and turns[0] in early:
            message = turns.popleft()
            self._transmit(now, early.pop(message), message)

    def _transmit(self, now, rank, action):
        latency, occupancy, link = self.tables[3:]
        leaves = now
        if occupancy[action]:
            leaves = max(now, self.busy_until[link[action]]) + occupancy[action]
            self.busy_until[link[action]] = leaves
        arrives = leaves + latency[action]
        self._fill(self.tables[2][action], arrives)
        if self.queue is not None:
            heappush(self.heap, (arrives, ARRIVES, rank, action))

    def _arrives(self, now, rank):
        """With a bounded queue: the rank's next message may go, and the rank may compute again if it was blocked."""
        sending = self.sending[rank]
        sending.popleft()
        if sending:
            heappush(self.heap, (now, JOINS, rank, sending[0]))
        if self.blocked[rank] is not None:
            action, self.blocked[rank] = self.blocked[rank], None
            self._issue(now, rank, action)
        elif self.queue:
            return
        self.clock[rank] = now
        self._go_on(rank)

    def _fill(self, filled, at):
        self.full[filled] = at
        if filled in self.asleep:
            self._go_on(self.asleep.pop(filled))
