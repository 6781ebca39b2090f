"""A judge of the cost model that shares none of it: messages as flows that share links max-min fairly, event by event.

As in the model a rank is in its next round once its messages of this one are done, and a message starts when both its
ranks are there. Then it waits for the start-up times of the links that it crosses and flows at the rate that all flows
of that moment leave it. What happens at the same time is done at once, as arrays: 1,024 ranks in the rounds of a
hierarchical all-reduce take seconds.
"""

import heapq
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lanterne.collectives.schedule.cost import chunk_nbytes
from lanterne.collectives.schedule.ir import REDUCE, CollectiveSchedule, Ints
from lanterne.collectives.topology.topology import Topology

Numbers = NDArray[np.float64]
# A flow with so small a part left is done; events are at once that differ by such a part of the time.
DONE, AT_ONCE = 1e-9, 1e-12


class Messages(NamedTuple):
    """The messages of a schedule: int arrays (messages,); `links` (messages, classes * 2), of `capacity`, bytes per s.

    A message that crosses fewer links has the last one for the others, which is without end.
    """

    round: Ints
    src: Ints
    dst: Ints
    nbytes: Numbers
    reduced: Numbers
    links: Ints
    alpha_s: Numbers
    capacity: Numbers


class Turns(NamedTuple):
    """The rounds of each rank that it takes part in, one after the other: a *turn* for each.

    Attributes:
        first: (world_size,) each rank's first turn, len(rank) where it has none.
        rank: of each turn; `last`, whether it is its rank's last one.
        added: bytes that it adds in the end, in chunks.
        starts, message: turn t has message[starts[t]:starts[t + 1]].
        of_src, of_dst: of each message, the turns of its ranks.
    """

    first: Ints
    rank: Ints
    last: NDArray[np.bool_]
    added: Numbers
    starts: Ints
    message: Ints
    of_src: Ints
    of_dst: Ints


def simulate_flows(
    schedule: CollectiveSchedule, nbytes: float, topology: Topology, start_s: Numbers | None = None
) -> Numbers:
    """When each rank is done, (world_size,) s.

    Args:
        nbytes: of the larger of a rank's two buffers.
        start_s: (world_size,) when each rank comes; None: all at 0.
    """
    messages = messages_of(schedule, chunk_nbytes(schedule, nbytes), topology)
    turns = turns_of(messages, schedule.world_size)
    finish_s = np.zeros(schedule.world_size) if start_s is None else np.array(start_s, float)
    gamma_s = topology.gamma_s_per_byte * chunk_nbytes(schedule, nbytes)
    # (time, number) of each event, and by number the turns that begin, and the messages that begin to flow.
    events: list[tuple[float, int]] = []
    begins: list[tuple[Ints, Ints]] = []
    none = np.zeros(0, np.int64)

    def plan(times_s: Numbers, what: Ints, are_turns: bool) -> None:
        for time_s in np.unique(times_s):
            at = what[times_s == time_s]
            heapq.heappush(events, (float(time_s), len(begins)))
            begins.append((at, none) if are_turns else (none, at))

    coming = np.flatnonzero(turns.first < len(turns.rank))
    plan(finish_s[coming], turns.first[coming], True)
    absent, left = np.full(len(messages.src), 2), np.diff(turns.starts)
    flows = _Flows(messages)
    now_s = 0.0
    while events or len(flows.active):
        end_s = flows.next_end(now_s)
        if events and events[0][0] <= end_s:
            time_s = events[0][0]
            flows.advance(time_s - now_s)
            now_s = time_s
            while events and events[0][0] <= time_s * (1 + AT_ONCE):
                begun, flowing = begins[heapq.heappop(events)[1]]
                flows.begin(flowing)
                found = turns.message[_ranges(turns.starts[begun], turns.starts[begun + 1])]
                np.subtract.at(absent, found, 1)
                ready = np.unique(found[absent[found] == 0])
                plan(now_s + messages.alpha_s[ready], ready, False)
            continue
        flows.advance(end_s - now_s)
        now_s = end_s
        over = flows.end()
        ended = np.concatenate([turns.of_src[over], turns.of_dst[over]])
        np.subtract.at(left, ended, 1)
        ended = np.unique(ended[left[ended] == 0])
        then_s = now_s + gamma_s * turns.added[ended]
        finish_s[turns.rank[ended]] = then_s
        goes_on = ~turns.last[ended]
        plan(then_s[goes_on], ended[goes_on] + 1, True)
    return finish_s


def messages_of(schedule: CollectiveSchedule, unit: float, topology: Topology) -> Messages:
    """The Messages of `schedule` on `topology`, chunks having `unit` bytes."""
    p = schedule.world_size
    round_of = np.repeat(np.arange(schedule.num_rounds), np.diff(schedule.offsets))
    keys, inverse, chunks = np.unique(
        (round_of * p + schedule.src) * p + schedule.dst, return_inverse=True, return_counts=True
    )
    reduced = np.bincount(inverse, (schedule.op == REDUCE).astype(float), len(keys)).astype(float)
    src, dst = keys // p % p, keys % p
    alpha_s, columns, capacity = np.zeros(len(keys)), [], [np.zeros(0)]
    for links, (mask, leaves, enters, size, slowdown) in zip(
        topology.links, topology.crossings(src.astype(np.int32), dst.astype(np.int32)), strict=True
    ):
        rate = 1 / np.maximum(slowdown * links.model.beta_s_per_byte, 1e-30)
        for side in (leaves, enters):
            # Only links that are used: of a mesh there are as many as pairs.
            used, place = np.unique(side, return_inverse=True)
            column = np.full(len(keys), -1, np.int64)
            column[mask] = place + sum(map(len, capacity))
            columns.append(column)
            capacity.append(rate[used])
        alpha_s[mask] += links.model.alpha_s
    listed = np.stack(columns, axis=1) if columns else np.zeros((len(keys), 1), np.int64)
    limits = np.concatenate([*capacity, [np.inf]])
    listed[listed < 0] = len(limits) - 1
    return Messages(keys // p**2, src, dst, np.asarray(chunks * unit, np.float64), reduced, listed, alpha_s, limits)


def turns_of(messages: Messages, world_size: int) -> Turns:
    """The Turns of `world_size` ranks in the rounds of `messages`."""
    count = len(messages.src)
    rounds = int(messages.round.max(initial=0)) + 1
    keys = np.concatenate([messages.src, messages.dst]) * rounds + np.tile(messages.round, 2)
    found, turn = np.unique(keys, return_inverse=True)
    rank = found // rounds
    order = np.argsort(turn, kind="stable")
    starts = np.searchsorted(turn[order], np.arange(len(found) + 1))
    added: Numbers = np.bincount(turn[count:], messages.reduced, len(found)).astype(float)
    first = np.searchsorted(rank, np.arange(world_size))
    # A rank without a turn has another's first one here.
    first[np.bincount(rank, minlength=world_size) == 0] = len(found)
    last = np.append(rank[1:] != rank[:-1], True)[: len(found)]
    return Turns(first, rank, last, added, starts, order % max(1, count), turn[:count], turn[count:])


def _ranges(starts: Ints, stops: Ints) -> Ints:
    """The numbers from each of `starts` up to, not including, that of `stops`, one after the other."""
    sizes = stops - starts
    return np.repeat(starts - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())


class _Flows:
    """The flows of a moment, and their rates."""

    def __init__(self, messages: Messages) -> None:
        self.active: Ints = np.zeros(0, np.int64)
        self._messages = messages
        self._left = messages.nbytes.copy()
        self._rate: Numbers = np.zeros(len(self._left))
        self._stale = False

    def begin(self, messages: Ints) -> None:
        if len(messages):
            self.active = np.concatenate([self.active, messages])
            self._stale = True

    def advance(self, time_s: float) -> None:
        self._left[self.active] -= self._rate[self.active] * time_s

    def next_end(self, now_s: float) -> float:
        """When the next flows end; infinity where none is active."""
        if not len(self.active):
            return float("inf")
        if self._stale:
            self._share()
        return now_s + float(self._times_s().min())

    def end(self) -> Ints:
        """Take out the flows that are done, and return them."""
        nbytes, rate = self._messages.nbytes[self.active], self._rate[self.active]
        times_s = self._times_s()
        done = times_s <= times_s.min() + DONE * nbytes / rate
        over, self.active = self.active[done], self.active[~done]
        self._stale = True
        return over

    def _times_s(self) -> Numbers:
        return np.maximum(self._left[self.active], 0) / self._rate[self.active]

    def _share(self) -> None:
        """Max-min: a link that leaves each of its flows less than their other links do fixes their rates; and again."""
        self._stale = False
        spare, waiting = self._messages.capacity.copy(), self.active
        size, least = len(spare), np.full(len(spare), np.inf)
        while len(waiting):
            links = self._messages.links[waiting]
            users = np.bincount(links.reshape(-1), minlength=size)
            np.divide(spare, users, out=least, where=users > 0)
            shares = least[links]
            rate = shares.min(axis=1)
            # A link where some flow gets less elsewhere has to wait for that.
            others = np.bincount(links.reshape(-1), (shares > rate[:, None]).reshape(-1), size)
            fixed = ((shares == rate[:, None]) & (others[links] == 0)).any(axis=1)
            self._rate[waiting[fixed]] = np.minimum(rate[fixed], 1e30)
            taken = np.bincount(links[fixed].reshape(-1), np.repeat(rate[fixed], links.shape[1]), size)
            spare = np.maximum(spare - np.where(np.isfinite(spare), taken, 0.0), 0.0)
            waiting = waiting[~fixed]
