"""What each of the three ranks of test_joined.py runs: `python joined_rank.py FOLDER RANK`; prints "fine" if all is."""

import sys
import threading
import time
from pathlib import Path

import numpy as np

import lanterne
from lanterne.errors import InputError, PeerFailed, TransportError, TransportTimeout

SIZE = 3
LIMIT_S = 30.0


class Folder:
    """A meeting place of files."""

    def __init__(self, path):
        self.path = Path(path)

    def set(self, key, value):
        draft = self.path / f"{key.replace('/', '-')}.{time.monotonic_ns()}"
        draft.write_text(value)
        draft.rename(self.path / key.replace("/", "-"))

    def get(self, key):
        until((self.path / key.replace("/", "-")).exists)
        return (self.path / key.replace("/", "-")).read_bytes()


def until(condition):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def raises(kind, call, *args):
    try:
        call(*args)
    except kind as error:
        return error
    raise AssertionError(f"nothing was raised, expected {kind}")


def told(comm):
    """Whoever asked is told once, of calls and messages, without a wait; and may wait for others meanwhile."""
    x, y, seen = np.full(1 << 16, comm.rank, np.float32), np.zeros(1 << 16, np.float32), []

    def again():
        comm.all_reduce(y, y)
        seen.append((y[0], threading.current_thread().name))

    comm.barrier()
    if comm.rank == 0:
        # The others ask before their call can be over; here it may be by then.
        time.sleep(0.2)
    comm.start_all_reduce(x, y).then(again)
    until(lambda: seen)
    threads = {"lanterne", "MainThread"} if comm.rank == 0 else {"lanterne"}
    ((total, thread),) = seen
    assert (total, thread in threads) == (9.0, True), seen
    request = comm.start_all_reduce(x, y)
    request.wait()
    request.then(lambda: seen.append(request.done))
    assert seen[1:] == [True]
    z = np.zeros(4, np.int64)
    receive = comm.start_recv(z, (comm.rank - 1) % SIZE)
    receive.then(lambda: seen.append(z[0]))
    if comm.rank == 0:
        raises(InputError, receive.then, print)
    comm.barrier()
    comm.send(np.full(4, comm.rank + 5), (comm.rank + 1) % SIZE)
    until(lambda: len(seen) == 3)
    assert seen[2] == (comm.rank - 1) % SIZE + 5, seen


def grouped(comm):
    """Members only make a group; the same ones another, in another order."""
    assert [raises(InputError, comm.group, ranks) for ranks in ([(comm.rank + 1) % SIZE], [comm.rank] * 2, [9])]
    if comm.rank != 1:
        pair, turned = comm.group([0, 2]), comm.group([2, 0])
        assert (pair.ranks, turned.ranks, turned.rank) == ((0, 2), (2, 0), 1 - comm.rank // 2)
        x = np.full(8, comm.rank, np.float32)
        requests = [pair.start_all_reduce(x, y := np.zeros_like(x)), turned.start_all_reduce(x, z := np.zeros_like(x))]
        for request in reversed(requests):
            request.wait()
        assert (y == 2).all() and (z == 2).all()
        assert len({comm.communicator_id, pair.communicator_id, turned.communicator_id}) == 3


def limited(comm):
    """A rank that does not come is found out although nobody waits, and ends that group only."""
    whole, seen = comm.group(range(SIZE)), []
    x = np.zeros(1 << 10, np.float32)
    if comm.rank:
        request = whole.start_all_reduce(x, x, algorithm="ring")
        request.then(lambda: seen.append(raises(TransportError, request.wait)), timeout_s=0.3)
        until(lambda: seen)
        assert isinstance(seen[0], TransportTimeout) and seen[0].peers[0] == 0, seen
        assert whole.failure is not None
    comm.barrier()
    assert comm.failure is None


def aborted(comm):
    """Who aborts, and all others, learn why; a call under way ends, and its user is told."""
    whole, seen = comm.group(range(SIZE)), []
    x = np.zeros(1 << 10, np.float32)
    if comm.rank != 2:
        request = whole.start_all_reduce(x, x, algorithm="ring")
        request.then(lambda: seen.append(raises(TransportError, request.wait)))
    if comm.rank == 0:
        whole.abort("the user is tired")
    if comm.rank != 2:
        until(lambda: seen)
        assert "the user is tired" in str(seen[0]), seen
        assert comm.rank == 0 or (isinstance(seen[0], PeerFailed) and seen[0].rank == 0)
    assert comm.rank == 2 or "tired" in str(raises(TransportError, whole.all_reduce, x, x))
    comm.barrier()


def main():
    folder, rank = sys.argv[1], int(sys.argv[2])
    with lanterne.join(Folder(folder), rank, SIZE, timeout_s=LIMIT_S) as comm:
        assert (comm.rank, comm.world_size) == (rank, SIZE)
        for check in (told, grouped, limited, aborted):
            check(comm)
    with lanterne.join(Folder(folder), 0, 1) as alone:
        assert alone.group([0]).world_size == 1
    print("fine")


if __name__ == "__main__":
    main()
