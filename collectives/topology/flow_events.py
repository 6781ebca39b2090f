"""The event loop of flows.py, compiled by Numba on first use and kept in Numba's cache.

Sizes come first; then arrays, of messages, of turns (see flows.Turns), and to work in. The heap has turns that begin,
by their numbers, and messages that begin to flow, behind those.
"""

from numba import njit

from lanterne.collectives.schedule.ir import Ints, Numbers
from lanterne.collectives.topology.event_heap import pop, push

# A flow with so small a part left is done; events are at once that differ by such a part of the time.
DONE, AT_ONCE = 1e-9, 1e-12
# The rate of a flow that crosses no link with a limit; later than all that happens.
ENDLESS, NEVER_S = 1e30, float("inf")


@njit(cache=True)
def share(
    num_links: int,
    columns: int,
    flowing: int,
    links: Ints,
    capacity: Numbers,
    active: Ints,
    rate: Numbers,
    waiting: Ints,
    spare: Numbers,
    least: Numbers,
    users: Ints,
) -> None:
    """Max-min: a link that leaves each of its flows less than their other links do fixes their rates; and again."""
    for place in range(flowing):
        waiting[place] = active[place]
    for link in range(num_links):
        spare[link] = capacity[link]
    unfixed = flowing
    while unfixed:
        for link in range(num_links):
            users[link] = 0
        for place in range(unfixed):
            for column in range(columns):
                users[links[waiting[place] * columns + column]] += 1
        for link in range(num_links):
            if users[link]:
                least[link] = spare[link] / users[link]
        # A link where some flow gets less elsewhere has to wait for that: it has no users here.
        for place in range(unfixed):
            flow = waiting[place]
            its = NEVER_S
            for column in range(columns):
                its = min(its, least[links[flow * columns + column]])
            rate[flow] = its
            for column in range(columns):
                if least[links[flow * columns + column]] > its:
                    users[links[flow * columns + column]] = 0
        kept = 0
        for place in range(unfixed):
            flow = waiting[place]
            its = rate[flow]
            fixed = False
            for column in range(columns):
                link = links[flow * columns + column]
                fixed = fixed or (users[link] > 0 and least[link] == its)
            if not fixed:
                waiting[kept] = flow
                kept += 1
                continue
            rate[flow] = min(its, ENDLESS)
            for column in range(columns):
                link = links[flow * columns + column]
                if spare[link] < NEVER_S:
                    spare[link] = max(spare[link] - its, 0.0)
        unfixed = kept


@njit(cache=True, nogil=True)
def run_events(
    num_ranks: int,
    num_turns: int,
    num_links: int,
    columns: int,
    gamma_s: float,
    nbytes: Numbers,
    start_s: Numbers,
    links: Ints,
    capacity: Numbers,
    of_src: Ints,
    of_dst: Ints,
    first: Ints,
    rank_of: Ints,
    is_last: Ints,
    added: Numbers,
    starts: Ints,
    message_of: Ints,
    absent: Ints,
    missing: Ints,
    heap_s: Numbers,
    heap: Ints,
    active: Ints,
    left: Numbers,
    rate: Numbers,
    waiting: Ints,
    spare: Numbers,
    least: Numbers,
    users: Ints,
    finish_s: Numbers,
) -> None:
    """Turn `finish_s`, when each rank comes, into when it is done.

    Args:
        gamma_s: to add a chunk.
        start_s: of each message, from when both its ranks are there until its bytes move.
        links: of message m those from m * columns on, so many.
        absent: of each message, how many of its ranks are not there yet: 2.
        missing: of each turn, its messages.
        heap_s, heap: room for as many as there are messages and turns.
        active, left, rate, waiting: room for a number of each message.
        spare, least, users: room for a number of each link.
    """
    size = 0
    for rank in range(num_ranks):
        if first[rank] < num_turns:
            size = push(heap_s, heap, size, float(finish_s[rank]), int(first[rank]))
    flowing = 0
    now_s = 0.0
    stale = False
    while size or flowing:
        if stale:
            share(num_links, columns, flowing, links, capacity, active, rate, waiting, spare, least, users)
            stale = False
        least_s = NEVER_S
        for place in range(flowing):
            flow = active[place]
            takes_s = float(max(left[flow], 0.0) / rate[flow])
            least_s = min(least_s, takes_s)
        if size and heap_s[0] <= now_s + least_s:
            time_s = float(heap_s[0])
            for place in range(flowing):
                flow = active[place]
                left[flow] -= rate[flow] * (time_s - now_s)
            now_s = time_s
            while size and heap_s[0] <= time_s * (1 + AT_ONCE):
                what = heap[0]
                size = pop(heap_s, heap, size)
                if what >= num_turns:
                    active[flowing] = what - num_turns
                    left[what - num_turns] = nbytes[what - num_turns]
                    flowing += 1
                    stale = True
                    continue
                for place in range(starts[what], starts[what + 1]):
                    message = int(message_of[place])
                    absent[message] -= 1
                    if not absent[message]:
                        size = push(heap_s, heap, size, now_s + float(start_s[message]), num_turns + message)
            continue
        now_s += least_s
        kept = 0
        for place in range(flowing):
            flow = active[place]
            takes_s = float(max(left[flow], 0.0) / rate[flow])
            left[flow] -= rate[flow] * least_s
            if takes_s > least_s + DONE * nbytes[flow] / rate[flow]:
                active[kept] = flow
                kept += 1
                continue
            for side in range(2):
                turn = int(of_dst[flow] if side else of_src[flow])
                missing[turn] -= 1
                if missing[turn]:
                    continue
                then_s = now_s + gamma_s * float(added[turn])
                finish_s[rank_of[turn]] = then_s
                if not is_last[turn]:
                    size = push(heap_s, heap, size, then_s, turn + 1)
        flowing = kept
        stale = True
