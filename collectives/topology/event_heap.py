"""A binary heap of (time, number) in two arrays, for the compiled event loops.

Importing it loads Numba, so import it where prices by events are needed, not at the top of a module.
"""

from numba import njit

from lanterne.collectives.schedule.ir import Ints, Numbers


@njit(cache=True)
def push(heap_s: Numbers, heap: Ints, size: int, time_s: float, what: int) -> int:
    """Insert `what` at `time_s` and return the new size. The least number of equal times comes first."""
    at = size
    while at:
        above = (at - 1) >> 1
        if heap_s[above] < time_s or (heap_s[above] == time_s and heap[above] < what):
            break
        heap_s[at] = heap_s[above]
        heap[at] = heap[above]
        at = above
    heap_s[at] = time_s
    heap[at] = what
    return size + 1


@njit(cache=True)
def pop(heap_s: Numbers, heap: Ints, size: int) -> int:
    """Remove the first entry and return the new size."""
    size -= 1
    time_s = heap_s[size]
    what = heap[size]
    at = 0
    while 2 * at + 1 < size:
        child = 2 * at + 1
        other = child + 1
        if other < size and (
            heap_s[other] < heap_s[child] or (heap_s[other] == heap_s[child] and heap[other] < heap[child])
        ):
            child = other
        if heap_s[child] > time_s or (heap_s[child] == time_s and heap[child] > what):
            break
        heap_s[at] = heap_s[child]
        heap[at] = heap[child]
        at = child
    heap_s[at] = time_s
    heap[at] = what
    return size
