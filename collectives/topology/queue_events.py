"""The event loop of queues.py, compiled by Numba on first use and kept in Numba's cache.

A message becomes ready, leaves, enters and arrives: number `message` of each kind, one kind behind the other.
"""

from numba import njit

from lanterne.collectives.schedule.ir import Ints, Numbers
from lanterne.collectives.topology.event_heap import pop, push


@njit(cache=True, nogil=True)
def run_queues(
    num_ranks: int,
    num_messages: int,
    num_links: int,
    columns: int,
    nbytes: Numbers,
    start_s: Numbers,
    added_s: Numbers,
    links: Ints,
    capacity: Numbers,
    src: Ints,
    dst: Ints,
    waits: Ints,
    first: Ints,
    followers: Ints,
    next_post: Ints,
    left: Ints,
    free_s: Numbers,
    heap_s: Numbers,
    heap: Ints,
    came_s: Numbers,
    finish_s: Numbers,
) -> None:
    """Turn `finish_s`, when each rank comes, into when it is done. What else it changes is room to work in.

    Args:
        added_s: what the receiver of each message adds, in the end.
        links: of message m those from m * columns on: by turns one that it leaves by, and one that it enters by.
        waits: for how much each message waits. One that has arrived is an end of waiting of followers[first[m]] to
            followers[first[m + 1] - 1]; one that is ready of next_post[m], unless that is -1.
        left, heap_s, heap: room for a number of each message.
        free_s: of each link: from when nothing stands in line before it.
        came_s: of each rank.
    """
    for rank in range(num_ranks):
        came_s[rank] = finish_s[rank]
    for link in range(num_links):
        free_s[link] = 0.0
    size = 0
    for message in range(num_messages):
        left[message] = waits[message]
        if waits[message] == 0:
            size = push(heap_s, heap, size, 0.0, message)
    while size:
        now_s = float(heap_s[0])
        what = int(heap[0])
        size = pop(heap_s, heap, size)
        message = what % num_messages
        if what < num_messages:
            begins_s = max(now_s, float(came_s[src[message]]), float(came_s[dst[message]]))
            size = push(heap_s, heap, size, begins_s + float(start_s[message]), message + num_messages)
            after = int(next_post[message])
            if after >= 0:
                left[after] -= 1
                if left[after] == 0:
                    size = push(heap_s, heap, size, now_s, after)
        elif what < 2 * num_messages:
            for column in range(0, columns, 2):
                link = links[message * columns + column]
                now_s = max(now_s, float(free_s[link]))
                free_s[link] = now_s + nbytes[message] / capacity[link]
            size = push(heap_s, heap, size, now_s, message + 2 * num_messages)
        elif what < 3 * num_messages:
            ends_s = now_s
            for column in range(0, columns, 2):
                way_out = links[message * columns + column]
                link = links[message * columns + column + 1]
                free_s[link] = max(now_s, float(free_s[link])) + nbytes[message] / capacity[link]
                ends_s = max(ends_s, float(free_s[link]), now_s + float(nbytes[message] / capacity[way_out]))
            size = push(heap_s, heap, size, ends_s + float(added_s[message]), message + 3 * num_messages)
        else:
            finish_s[src[message]] = max(now_s - float(added_s[message]), float(finish_s[src[message]]))
            finish_s[dst[message]] = max(now_s, float(finish_s[dst[message]]))
            for place in range(first[message], first[message + 1]):
                follower = int(followers[place])
                left[follower] -= 1
                if left[follower] == 0:
                    size = push(heap_s, heap, size, now_s, follower)
