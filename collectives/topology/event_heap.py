"""What is to come, soonest first: a heap of times and numbers, for loops that are compiled beforehand."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Numbers = NDArray[np.float64]


def push(heap_s: Numbers, heap: Ints, size: int, time_s: float, what: int) -> int:
    """Put `what` at `time_s` into the heap of `size`; its new size. Of what is at once the least comes first."""
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


def pop(heap_s: Numbers, heap: Ints, size: int) -> int:
    """Take out the first of the heap of `size`; its new size."""
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
