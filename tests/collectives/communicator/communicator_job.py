"""What each rank of test_communicator_jobs.py runs: `python communicator_job.py CASE...`, a line for each that is well.

Cases run one after the other; one that kills comes last.
"""

import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from itertools import cycle

import numpy as np

# Run as a script: what the tests of collectives share lies one folder up.
sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from random_calls import random_calls
from verbs import check_verbs

import lanterne
from lanterne.collectives.call.ids import CLOSED
from lanterne.collectives.communicator import core_of
from lanterne.collectives.core import GROUP_IDS
from lanterne.collectives.late import calls as late_ranks
from lanterne.collectives.schedule.cost import CostModel

# Calls ask who is late from the same size on, whether ranks share cores here or not.
late_ranks.SHARED = 1

DTYPES = ("float16", "float32", "int64")
COUNTS = (0, 1, 1000, 300_001)
# How long the others wait for who does not come: more than a loaded machine holds any of them up.
ABSENT_S = 3


def inputs_of(comm, count, dtype):
    return [(np.arange(count) % 5 + rank).astype(dtype) for rank in range(comm.world_size)]


def matrix(comm):
    """Every algorithm of all_reduce, native too, each of one dtype, by count; then each other collective once."""
    for name, dtype in zip(comm.algorithms("all_reduce"), cycle(DTYPES)):
        for count in COUNTS:
            inputs = inputs_of(comm, count, "int64" if name == "native" else dtype)
            out = np.empty_like(inputs[comm.rank])
            comm.all_reduce(inputs[comm.rank], out, algorithm=name)
            np.testing.assert_array_equal(out, sum(inputs), err_msg=f"{name} {dtype} {count}")
    others(comm, "auto")
    if comm.transport.name == "mpi":
        others(comm, "native")
        out = np.empty(5)
        comm.start_all_reduce(np.ones(5), out, "mean", algorithm="native").wait()
        np.testing.assert_array_equal(out, 1)
    random_calls(comm, 50, seed=comm.world_size)
    half = comm.split(comm.rank % 2)
    others(half, "auto")
    if comm.transport.name == "mpi":
        others(half, "native")


def others(comm, algorithm):
    n, me, count = comm.world_size, comm.rank, 77
    parts = inputs_of(comm, n * count, "int64")
    mine, part = parts[me], slice(me * count, (me + 1) * count)
    out = np.empty(count, np.int64)
    comm.reduce_scatter(mine, out, algorithm=algorithm)
    np.testing.assert_array_equal(out, sum(parts)[part])
    gathered = np.empty(n * count, np.int64)
    comm.all_gather(mine[:count].copy(), gathered, algorithm=algorithm)
    np.testing.assert_array_equal(gathered, np.concatenate([p[:count] for p in parts]))
    comm.all_to_all(mine, gathered, algorithm=algorithm)
    np.testing.assert_array_equal(gathered, np.concatenate([p[part] for p in parts]))
    reduced = np.zeros(n * count, np.int64)
    comm.reduce(mine, reduced, n - 1, "max", algorithm=algorithm)
    np.testing.assert_array_equal(reduced, np.max(parts, axis=0) if me == n - 1 else 0)
    copy = mine.copy()
    comm.broadcast(copy, n - 1, algorithm=algorithm)
    np.testing.assert_array_equal(copy, parts[n - 1])
    comm.barrier(algorithm=algorithm)


def verbs(comm):
    """What moves parts, and scans: by every choice of auto's, and natively."""
    check_verbs(comm)
    if comm.transport.name == "mpi":
        check_verbs(comm, "native")


def failing(comm, case):
    """Rank 1 misbehaves in the second call; all others must raise in bounded time, and name it."""
    array, out = np.ones(1 << 20), np.empty(1 << 20)
    comm.all_reduce(array, out)
    if comm.rank == 1:
        if case == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if case == "absent":
            return
        array, out = array[:7], out[:7]
    try:
        comm.all_reduce(array, out, timeout_s=ABSENT_S if case == "absent" else 30)
    except lanterne.PeerFailed as error:
        assert error.rank == 1, error
        found = "killed"
    except lanterne.TransportTimeout as error:
        assert error.peers == (1,), error
        found = "absent"
    except lanterne.InputError as error:
        assert "rank 1 got all_reduce(" in str(error), error
        found = "disagrees"
    else:
        raise AssertionError(f"the call that rank 1 does not make, {case}, was complete")
    assert found == case


def has_left(comm):
    """Rank 0 is through a broadcast and computes; the others, which add up, learn that the calls differ."""
    try:
        if comm.rank == 0:
            comm.broadcast(np.ones(3), timeout_s=20)
        else:
            comm.all_reduce(np.ones(3), np.ones(3), timeout_s=20)
    except lanterne.InputError as error:
        assert "rank 0 got broadcast(" in str(error) and "got all_reduce(" in str(error), error
        return
    assert comm.rank == 0
    deadline = time.monotonic() + 20
    while core_of(comm).failure is None and time.monotonic() < deadline:
        time.sleep(0.01)


def late(comm, calls=40):
    """Random delays on a network that is taken for slow: nobody is told who is late. Then one rank misses a call."""
    n, count = comm.world_size, 1 << 16
    comm.tuning.adopt(CostModel(1e-4, 1 / 50e6), "test")
    shared, index, out = random.Random(n), np.arange(count) % 13, np.empty(count, np.float32)

    def check(number, **options):
        out.fill(-1)
        comm.all_reduce((index + comm.rank + number % 5).astype(np.float32), out, **options)
        np.testing.assert_array_equal(out, (index + number % 5) * n + n * (n - 1) // 2)

    for number in range(calls):
        late_rank, delay_s = shared.randrange(2 * n), shared.random() * 1e-2
        time.sleep(delay_s * (comm.rank == late_rank))
        check(number)
    # After late calls none is free, so that the next one asks.
    for number in range(10):
        time.sleep(0.03 * (comm.rank == 0))
        check(number)
    deadline = time.monotonic() + 10
    while (arrivals := comm.arrivals()).calls < calls + 10 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert arrivals.calls == arrivals.last.sum() == calls + 10
    assert 0 < arrivals.begun_early < calls, arrivals.begun_early
    if comm.rank == 1:
        time.sleep(2 * ABSENT_S)
    try:
        check(calls, timeout_s=ABSENT_S)
        raise AssertionError("a call without rank 1 was complete")
    except lanterne.TransportTimeout as error:
        assert error.peers == (1,), error
    for number in range(5):
        check(number)
    if comm.rank == 0:
        time.sleep(0.3)
    check(0)


def store_dies(comm):
    """The board's process is killed while the others wait for rank 1: all raise, in bounded time."""
    comm.tuning.adopt(CostModel(1e-4, 1 / 50e6), "test")
    x = np.ones(1 << 16, np.float32)
    comm.all_reduce(x, x)
    if comm.rank == 1:
        time.sleep(1)
    if comm.rank == 0:
        children = subprocess.run(
            ["pgrep", "-f", "lanterne.transport.store.server"], check=False, capture_output=True, text=True
        ).stdout
        for pid in map(int, children.split()):
            with open(f"/proc/{pid}/environ", "rb") as file:
                if b"LANTERNE_TOKEN=" + os.environ["LANTERNE_TOKEN"].encode() in file.read():
                    os.kill(pid, signal.SIGKILL)
    try:
        comm.all_reduce(x, x, timeout_s=10)
    except lanterne.LanterneError:
        return
    raise AssertionError("the call was complete")


def stopped(comm):
    """Rank 1 is stopped, so that it neither comes nor dies; the others note that, and end as any program does."""
    x = np.ones(1000, np.float32)
    comm.all_reduce(x, x)
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        comm.all_reduce(x, x, timeout_s=0.5)
    except lanterne.TransportTimeout:
        comm.close()
        sys.exit(5)


def late_look(comm):
    """Rank 1 sleeps, and then reads what the others have sent meanwhile."""
    if comm.rank == 1:
        time.sleep(0.3)
        with comm.transport.lock:
            comm.transport.progress()


def adds_up(group):
    out = np.zeros(100)
    group.all_reduce(np.ones(100), out, algorithm="ring", timeout_s=10)
    assert (out == group.world_size).all()


def reused_ids(comm):
    """What the others send over a communicator whose id was used before is not lost on a rank that has none yet."""
    core = core_of(comm)
    for _ in range(3):
        with comm.split(0) as group:
            adds_up(group)
    core.ids.used[:-1] = core.ids.used[:-1].replace(b"\0", bytes([CLOSED]))
    take = core.ids.take

    def take_late(*args):
        late_look(comm)
        return take(*args)

    core.ids.take = take_late
    with comm.split(0) as again:
        assert again.communicator_id <= group.communicator_id
        adds_up(again)
    core.ids.take = take
    with comm.group(range(comm.world_size)) as first:
        adds_up(first)
    comm.barrier()
    if comm.rank == 0:
        comm.transport.membership.store.add("lanterne/groups", GROUP_IDS - 1)
    comm.barrier()
    late_look(comm)
    with comm.group(range(comm.world_size)) as second:
        assert second.communicator_id == first.communicator_id
        adds_up(second)


CASES = {"verbs": verbs, "reused_ids": reused_ids, "late": late, "store_dies": store_dies, "stopped": stopped}
CASES |= {"has_left": has_left}
CASES |= {case: partial(failing, case=case) for case in ("disagrees", "absent", "killed")}


def main():
    with lanterne.init(os.environ.get("CASE_TRANSPORT"), timeout_s=60) as comm:
        assert comm.world_size == int(os.environ["CASE_RANKS"])
        for case in sys.argv[1:]:
            # What closes its communicator gets one of its own.
            if case == "matrix":
                matrix(comm)
            else:
                with comm.split(0) as group:
                    CASES[case](group)
            os.write(1, f"rank {comm.rank} over {comm.transport.name}: {case} fine\n".encode())
            comm.barrier()


main()
