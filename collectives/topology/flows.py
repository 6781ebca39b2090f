"""A judge of the cost model that shares none of it: messages as flows that share links max-min fairly, event by event.

As in the model a rank is in its next round once its messages of this one are done, and a message starts when both its
ranks are there. Then it waits for the start-up times of the links that it crosses and flows at the rate that all flows
of that moment leave it. What happens at the same time is done at once. Numba compiles the loop over events when it
first runs, and keeps it on disk: some seconds once per machine. Then 16 ranks take milliseconds, and 1,024 ranks in the
rounds of a hierarchical all-reduce a second.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from lanterne.collectives.schedule.cost import chunk_nbytes
from lanterne.collectives.schedule.ir import REDUCE, CollectiveSchedule, Ints
from lanterne.collectives.topology.topology import Topology

Numbers = NDArray[np.float64]
# A flow with so small a part left is done; events are at once that differ by such a part of the time.
DONE, AT_ONCE = 1e-9, 1e-12
# The rate of a flow that crosses no link with a limit.
ENDLESS = 1e30


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
    unit = chunk_nbytes(schedule, nbytes)
    messages = messages_of(schedule, unit, topology)
    turns = turns_of(messages, schedule.world_size)
    finish_s = np.zeros(schedule.world_size) if start_s is None else np.array(start_s, float)
    count, links, most = len(messages.src), len(messages.capacity), len(messages.src) + len(turns.rank)
    flows = Flows(np.empty(count, np.int64), messages.nbytes.copy(), np.zeros(count))
    work = Sharing(np.empty(count, np.int64), np.empty(links), np.empty(links), np.empty(links, np.int64))
    agenda = Agenda(np.empty(most), np.empty(most, np.int64), np.full(count, 2), np.diff(turns.starts))
    _run(messages, turns, flows, work, agenda, topology.gamma_s_per_byte * unit, finish_s)
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
    for links, (mask, leaves, enters, size, slowdown) in zip(topology.links, topology.crossings(src, dst), strict=True):
        rate = 1 / np.maximum(slowdown * links.model.beta_s_per_byte, 1e-30)
        for side in (leaves, enters):
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


class Flows(NamedTuple):
    """The flows of a moment: `active` messages; bytes `left` and `rate` of each message."""

    active: Ints
    left: Numbers
    rate: Numbers


class Sharing(NamedTuple):
    """Of _share, to work in: messages without a rate; of each link what is spare, a flow's share, and its flows."""

    waiting: Ints
    spare: Numbers
    least: Numbers
    users: Ints


class Agenda(NamedTuple):
    """What is to come: a heap of turns that begin, by their numbers, and of messages that begin to flow, behind those.

    Of each message how many of its ranks are `absent`; of each turn its messages that are `left`.
    """

    heap_s: Numbers
    heap: Ints
    absent: Ints
    left: Ints


@njit(cache=True)
def _run(
    messages: Messages, turns: Turns, flows: Flows, work: Sharing, agenda: Agenda, gamma_s: float, finish_s: Numbers
) -> None:
    """Turn `finish_s`, when each rank comes, into when it is done.

    Args:
        gamma_s: to add a chunk.
    """
    size, num_turns = 0, len(turns.rank)
    for rank in range(len(finish_s)):
        if turns.first[rank] < num_turns:
            size = _push(agenda.heap_s, agenda.heap, size, finish_s[rank], turns.first[rank])
    active, now_s, stale = 0, 0.0, False
    while size or active:
        if stale:
            _share(messages, flows, active, work)
            stale = False
        least_s = np.inf
        for place in range(active):
            flow = flows.active[place]
            least_s = min(least_s, max(flows.left[flow], 0.0) / flows.rate[flow])
        if size and agenda.heap_s[0] <= now_s + least_s:
            time_s = agenda.heap_s[0]
            for place in range(active):
                flow = flows.active[place]
                flows.left[flow] -= flows.rate[flow] * (time_s - now_s)
            now_s = time_s
            while size and agenda.heap_s[0] <= time_s * (1 + AT_ONCE):
                what = agenda.heap[0]
                size = _pop(agenda.heap_s, agenda.heap, size)
                if what >= num_turns:
                    flows.active[active] = what - num_turns
                    active, stale = active + 1, True
                    continue
                for place in range(turns.starts[what], turns.starts[what + 1]):
                    message = turns.message[place]
                    agenda.absent[message] -= 1
                    if not agenda.absent[message]:
                        begins_s = now_s + messages.alpha_s[message]
                        size = _push(agenda.heap_s, agenda.heap, size, begins_s, num_turns + message)
            continue
        now_s += least_s
        kept = 0
        for place in range(active):
            flow = flows.active[place]
            took_s = max(flows.left[flow], 0.0) / flows.rate[flow]
            flows.left[flow] -= flows.rate[flow] * least_s
            if took_s > least_s + DONE * messages.nbytes[flow] / flows.rate[flow]:
                flows.active[kept] = flow
                kept += 1
                continue
            for side in range(2):
                turn = turns.of_dst[flow] if side else turns.of_src[flow]
                agenda.left[turn] -= 1
                if agenda.left[turn]:
                    continue
                then_s = now_s + gamma_s * turns.added[turn]
                finish_s[turns.rank[turn]] = then_s
                if not turns.last[turn]:
                    size = _push(agenda.heap_s, agenda.heap, size, then_s, turn + 1)
        active, stale = kept, True


@njit(cache=True)
def _share(messages: Messages, flows: Flows, active: int, work: Sharing) -> None:
    """Max-min: a link that leaves each of its flows less than their other links do fixes their rates; and again."""
    waiting, spare, least, users = work
    links, columns = messages.links, messages.links.shape[1]
    for place in range(active):
        waiting[place] = flows.active[place]
    for link in range(len(spare)):
        spare[link] = messages.capacity[link]
    left = active
    while left:
        for link in range(len(spare)):
            users[link] = 0
        for place in range(left):
            for column in range(columns):
                users[links[waiting[place], column]] += 1
        for link in range(len(spare)):
            if users[link]:
                least[link] = spare[link] / users[link]
        # A link where some flow gets less elsewhere has to wait for that: it has no users here.
        for place in range(left):
            flow = waiting[place]
            rate = np.inf
            for column in range(columns):
                rate = min(rate, least[links[flow, column]])
            flows.rate[flow] = rate
            for column in range(columns):
                if least[links[flow, column]] > rate:
                    users[links[flow, column]] = 0
        kept = 0
        for place in range(left):
            flow = waiting[place]
            rate = flows.rate[flow]
            fixed = False
            for column in range(columns):
                link = links[flow, column]
                fixed = fixed or (users[link] > 0 and least[link] == rate)
            if not fixed:
                waiting[kept] = flow
                kept += 1
                continue
            flows.rate[flow] = min(rate, ENDLESS)
            for column in range(columns):
                link = links[flow, column]
                if spare[link] < np.inf:
                    spare[link] = max(spare[link] - rate, 0.0)
        left = kept


@njit(cache=True)
def _push(heap_s: Numbers, heap: Ints, size: int, time_s: float, what: int) -> int:
    """Put `what` at `time_s` into the heap of `size`; its new size."""
    at = size
    while at and heap_s[(at - 1) // 2] > time_s:
        heap_s[at], heap[at] = heap_s[(at - 1) // 2], heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap_s[at], heap[at] = time_s, what
    return size + 1


@njit(cache=True)
def _pop(heap_s: Numbers, heap: Ints, size: int) -> int:
    """Take out the first of the heap of `size`; its new size."""
    size -= 1
    time_s, what = heap_s[size], heap[size]
    at = 0
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and heap_s[child + 1] < heap_s[child]:
            child += 1
        if heap_s[child] >= time_s:
            break
        heap_s[at], heap[at] = heap_s[child], heap[child]
        at = child
    heap_s[at], heap[at] = time_s, what
    return size
