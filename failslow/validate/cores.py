"""What a thread gets of the machine's cores: which it may use, computing on one of them, how long it waited for one."""

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def waited_s(threads: Iterable[int] = ()) -> float:
    """Seconds that this thread and `threads` (native ids) were ready to run and had to wait for a core.

    Since they began; 0.0 of those of which the system does not tell.
    """
    total_ns = 0
    for thread in (threading.get_native_id(), *threads):
        try:
            with open(f"/proc/self/task/{thread}/schedstat", "rb") as file:
                total_ns += int(file.read().split()[1])
        except (OSError, IndexError, ValueError):
            continue
    return total_ns / 1e9


def spread_cores(at_once: int) -> list[int]:
    """The cores that this thread may use, in order; of the halves of one only the first, if `at_once` are left."""
    mine = sorted(os.sched_getaffinity(0))
    firsts = [core for core in mine if core == min(_halves(core) & set(mine))]
    return firsts if len(firsts) >= at_once else mine


def _halves(core: int) -> set[int]:
    """The numbers of what shares the core that `core` is a part of."""
    try:
        text = Path(SIBLINGS.format(core)).read_text()
        spans = [part.partition("-") for part in text.strip().split(",")]
        return {core}.union(*(range(int(first), int(last or first) + 1) for first, _, last in spans))
    except (OSError, ValueError):
        return {core}


@contextlib.contextmanager
def pinned(core: int | None) -> Iterator[None]:
    """This thread runs on `core` alone in the block; None, or where the system forbids it: wherever it may."""
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, before if core is None else {core})
    except OSError:
        core = None
    try:
        yield
    finally:
        if core is not None:
            os.sched_setaffinity(0, before)
