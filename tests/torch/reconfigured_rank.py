"""One rank of a job whose group is made anew, as torchft's Manager makes it: `python reconfigured_rank.py [back]`.

Rank 2 dies in an all_reduce and is started again (`back`). Prints a line of JSON, what is wrong, for each part.
"""

import json
import os
import sys
import threading
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist
from refusals import refuses

import lanterne.torch

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
STORE = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
VICTIM, TIMEOUT = 2, timedelta(seconds=60)


def total_of(group, count=1 << 16):
    """What an all_reduce makes of this rank's number plus 1, wherever it is; by its future, as torchft takes it."""
    x = torch.full((count,), float(RANK + 1))
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.SUM
    (result,) = group.allreduce([x], options).get_future().wait()
    assert result.data_ptr() == x.data_ptr() and bool((x == x[0]).all())
    return float(x[0])


def configure(group, number, rank=RANK, size=SIZE):
    """As torchft calls it."""
    group.configure(f"{STORE}/torchft/{number}/0", f"replica_{RANK}", rank, size, number, 0, 1, list(range(size)))
    assert (group.rank(), group.size(), dist.get_world_size(group)) == (rank, size, size)
    assert group.errored() is None


def of_itself(group):
    """What a group is, and refuses, before it is configured."""
    assert (group.rank(), group.size(), group.errored()) == (0, 1, None)
    assert total_of(group) == RANK + 1
    for address in ("", "host", "host:port/x", ":1/x", "host:0/x"):
        refuses(ValueError, "expected HOST:PORT/PREFIX", lambda address=address: group.configure(address, "", 0, 1))
    refuses(ValueError, "got rank 3 of 3", lambda: group.configure(STORE, "", 3, 3))
    refuses(ValueError, "expected a timedelta", lambda: group.set_timeout(3.0))
    refuses(ValueError, "expected a timedelta", lambda: lanterne.torch.ReconfigurableGroup(timedelta(0)))
    refuses(ValueError, "transport", lambda: lanterne.torch.ReconfigurableGroup(transport="pigeon"))


def whole(group):
    """All three are in it; one dies, the others learn who."""
    configure(group, 1)
    assert total_of(group) == 6
    if RANK == VICTIM:
        os.execv(sys.executable, [sys.executable, *sys.argv, "back"])
    refuses(RuntimeError, "rank 2 failed", lambda: total_of(group))
    assert "rank 2 failed" in str(group.errored())


def smaller(group):
    """Two are left."""
    configure(group, 2, size=2)
    assert total_of(group) == 3
    group.send([torch.full((3,), float(RANK))], 1 - RANK, 7).wait()
    got = torch.empty(3)
    group.recv([got], 1 - RANK, 7).wait()
    assert bool((got == 1 - RANK).all())


def whole_again(group):
    """The one that died is in it again; ranks are numbered the other way round."""
    configure(group, 3, SIZE - 1 - RANK)
    assert total_of(group) == 6


def late(group):
    """A rank that does not come is waited for as long as set_timeout says, and named."""
    group.set_timeout(timedelta(milliseconds=300))
    if RANK != 0:
        refuses(RuntimeError, "Timed out", lambda: total_of(group))
        assert "rank 2" in str(group.errored()), group.errored()
        BOARD.set(f"late/{RANK}", "1")
    else:
        BOARD.wait(["late/1", "late/2"])
    group.set_timeout(TIMEOUT)
    configure(group, 4)
    assert total_of(group) == 6


def aborted(group):
    """One rank aborts it amid a call in another thread: all learn it, and make it anew."""
    told = []

    def call():
        try:
            total_of(group)
        except RuntimeError as error:
            told.append(str(error))

    waiting = threading.Thread(target=call)
    if RANK == 0:
        group.abort()
    waiting.start()
    waiting.join(20)
    assert told and "aborted" in told[0], told
    assert "aborted" in str(group.errored())
    configure(group, 5)
    assert total_of(group) == 6


def without_one(group):
    """A rank that is counted on but does not come: the others are told, after the timeout, and go on without it."""
    group.set_timeout(timedelta(seconds=2))
    if RANK != 0:
        refuses(RuntimeError, "", lambda: configure(group, 6))
        assert group.errored() is not None
        group.set_timeout(TIMEOUT)
        configure(group, 7, RANK - 1, 2)
        assert total_of(group) == 5
    group.shutdown()
    group.shutdown()
    refuses(dist.DistBackendError, "closed", lambda: total_of(group))


def main():
    global BOARD  # noqa: PLW0603
    # Rank 0 has it until all are done.
    host, port = STORE.split(":")
    BOARD = dist.TCPStore(host, int(port), is_master=RANK == 0, wait_for_workers=False, timeout=TIMEOUT)
    group = lanterne.torch.ReconfigurableGroup(TIMEOUT)
    parts = [whole_again, late, aborted, without_one]
    for part in parts if "back" in sys.argv else [of_itself, whole, smaller, *parts]:
        said = ""
        try:
            part(group)
        except Exception:
            said = traceback.format_exc()
        print(json.dumps({"name": part.__name__, "said": said}), flush=True)
    BOARD.set(f"done/{RANK}", "1")
    if RANK == 0:
        BOARD.wait([f"done/{rank}" for rank in range(SIZE)])


if __name__ == "__main__":
    main()
