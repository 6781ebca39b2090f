"""What each of the two ranks of test_background.py runs: `python background_job.py CASE...`, and says of each.

Cases run one after the other; one that ends the process comes alone.
"""

import logging
import os
import signal
import sys
import threading
import time

import numpy as np

import lanterne
from lanterne.collectives.communicator import core_of
from lanterne.errors import LanterneError, PeerFailed

COUNT = 1 << 20
LIMIT_S = 30.0


def say(text):
    # In one write: the ranks share one pipe.
    os.write(1, f"{text}\n".encode())


def until(condition):
    """Return once it holds; nothing of the library's is called meanwhile."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def has_engine():
    return any(thread.name == "lanterne" for thread in threading.enumerate())


def arrays(comm, value=1):
    return np.full(COUNT, comm.rank + value, np.float32), np.zeros(COUNT, np.float32)


def completes(comm):
    """Started calls end although nobody waits, blocking ones need no thread, and wait finds what is complete."""
    x, y = arrays(comm)
    for _ in range(20):
        comm.all_reduce(x, y)
    assert not has_engine()
    for turn in range(3):
        calls = [(comm.start_all_reduce(x, out, algorithm="ring"), out) for out in (np.zeros_like(x) for _ in range(5))]
        assert has_engine(), turn
        until(lambda: all(request.done for request, _ in calls))  # noqa: B023
        for request, out in calls:
            request.wait()
            assert (out == 3).all(), (turn, out)
    comm.all_reduce(x, y)


def two_threads(comm):
    """Threads with a communicator each do not disturb each other, whatever their order."""
    comms = [comm.split(0), comm.split(0)]
    wrong = []

    def work(index):
        x, y = arrays(comm, index)
        for number in range(30):
            y[:] = 0
            request = comms[index].start_all_reduce(x, y)
            if number % 3 == index:
                time.sleep(1e-3)
            request.wait()
            wrong.append(int(np.count_nonzero(y != 1 + 2 * index)))

    order = (0, 1) if comm.rank else (1, 0)
    threads = [threading.Thread(target=work, args=(index,)) for index in order]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [0] * 60, wrong


def dead_thread(comm):
    """The call of a thread that died is brought to its end."""
    x, y = arrays(comm)
    requests = []

    def work():
        requests.append(comm.start_all_reduce(x, y))
        sys.exit()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    until(lambda: requests[0].done)
    assert (y == 3).all()


def killed(comm):
    """A death is noticed while the survivor computes, and its wait names the rank."""
    x, y = arrays(comm)
    if comm.rank == 1:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    request = comm.start_all_reduce(x, y, algorithm="ring")
    until(lambda: core_of(comm).failure is not None)
    for turn in range(2):
        try:
            request.wait()
        except PeerFailed as error:
            assert error.rank == 1, (turn, error)


def forked(comm):
    """A child can make no call, and says why in one line; its parent goes on."""
    x, y = arrays(comm)
    request = comm.start_all_reduce(x, y)
    child = os.fork()
    if not child:
        try:
            comm.all_reduce(x, y)
        except LanterneError as error:
            os._exit(7 if "fork" in str(error) and "\n" not in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    request.wait()
    comm.all_reduce(x, y)
    assert (y == 3).all()


def exits(comm):
    """The end of a process with a call under way that cannot end: one line, no hang."""
    x, y = arrays(comm)
    if comm.rank == 0:
        comm.start_all_reduce(x, y, algorithm="ring")
    time.sleep(0.2)


def closes(comm):
    """As `exits`, of close."""
    exits(comm)
    comm.close()


def main(cases):
    logging.basicConfig(format="log: %(message)s")
    comm = lanterne.init("ucx")
    for case in cases:
        globals()[case](comm)
        say(f"{case} fine")
    if not {"exits", "killed"} & set(cases):
        comm.close()


main(sys.argv[1:])
