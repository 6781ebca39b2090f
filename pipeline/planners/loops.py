"""Whether the loops of the search are compiled, and compiling them in the background.

It takes some 20 s once per machine; the compiled loops then come from Numba's cache. A caller that need not wait takes
the best of the other schedulers' plans, and has the loops made meanwhile.
"""

import fcntl
import os
import subprocess
import sys

from lanterne.pipeline.planners.annealing import anneal, orders_of, score_words, scratch, simulate_words
from lanterne.pipeline.planners.growth.periods import repeat_period
from lanterne.pipeline.planners.list_rules import list_words
from lanterne.pipeline.simulate.compiled import is_compiled

COMPILED = (list_words, orders_of, scratch, simulate_words, score_words, anneal, repeat_period)


def are_compiled() -> bool:
    """Return whether the loops are in this process, or in Numba's cache and as old as their text."""
    return all(map(is_compiled, COMPILED))


def compile_in_background() -> None:
    """Let another process compile the loops, at low priority, if none does so; it outlives this one."""
    folder = score_words._cache.cache_path  # type: ignore[attr-defined]
    try:
        os.makedirs(folder, exist_ok=True)
        lock = os.open(os.path.join(folder, "compiling.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        return  # What was compiled could not be kept.
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return
    words = "import os; os.nice(10); from lanterne.pipeline.planners.best import load_search; load_search()"
    none = subprocess.DEVNULL
    command = [sys.executable, "-P", "-c", words]
    try:
        # The lock is the open file's, so that process holds it until it ends.
        subprocess.Popen(command, stdin=none, stdout=none, stderr=none, start_new_session=True, pass_fds=(lock,))
    finally:
        os.close(lock)
