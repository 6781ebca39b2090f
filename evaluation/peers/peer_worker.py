"""One rank of one contender of `./run evaluate lab-peers`: it calls an all_reduce when told to, and checks the result.

Run as a program, with the contender and a socket's path, in the contender's own Python: needs NumPy and that library.
Orders come as lines of JSON, one at a time, and are answered each; at the end of the orders it ends. While it waits for
one it does nothing, so contenders that are started side by side do not disturb each other.
"""

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol, TextIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]
# Values repeat after a prime number of elements, so that no chunk holds what belongs elsewhere.
PERIOD = 65537
# The last part of a wait yields instead of sleeping.
SPIN_S = 1e-3


class Library(Protocol):
    """What is compared; each of the following is one."""

    rank: int
    world_size: int
    version: str
    barrier: Callable[[], object]
    close: Callable[[], object]

    def all_reduce(self, x: Floats, y: Floats, options: dict[str, Any]) -> None:
        """The sum of all ranks' `x`, in `y`."""
        ...

    def start(self, x: Floats, y: Floats, options: dict[str, Any]) -> Callable[[], object]:
        """Start the same, and return what waits for it."""
        ...


class Lanterne:
    """This project, over the transport that a job takes by itself, or LANTERNE_TRANSPORT."""

    def __init__(self) -> None:
        import lanterne

        self.comm: lanterne.Communicator = lanterne.init()
        self.rank: int = self.comm.rank
        self.world_size: int = self.comm.world_size
        self.version: str = f"lanterne {lanterne.__version__}"
        self.barrier: Callable[[], object] = self.comm.barrier
        self.close: Callable[[], object] = self.comm.close

    def all_reduce(self, x: Floats, y: Floats, options: dict[str, Any]) -> None:
        self.comm.all_reduce(x, y, **options)

    def start(self, x: Floats, y: Floats, options: dict[str, Any]) -> Callable[[], object]:
        return self.comm.start_all_reduce(x, y, **options).wait


class Mpi:
    """MPI_Allreduce of whatever MPI mpi4py finds."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self.comm: MPI.Intracomm = MPI.COMM_WORLD
        self.rank: int = self.comm.rank
        self.world_size: int = self.comm.size
        self.version: str = " ".join(MPI.Get_library_version().split("\n")[0].split(",")[0].split())
        self.barrier: Callable[[], object] = self.comm.Barrier
        self.close: Callable[[], object] = MPI.Finalize

    def all_reduce(self, x: Floats, y: Floats, options: dict[str, Any]) -> None:
        self.comm.Allreduce(x, y)

    def start(self, x: Floats, y: Floats, options: dict[str, Any]) -> Callable[[], object]:
        wait: Callable[[], object] = self.comm.Iallreduce(x, y).Wait
        return wait


class Gloo:
    """Gloo, through torch.distributed. It works in place: the copy before the call is not timed."""

    def __init__(self) -> None:
        # By name: checkers take lanterne/torch for it where PyTorch is not installed.
        torch: Any = import_module("torch")
        distributed: Any = import_module("torch.distributed")
        torch.set_num_threads(1)
        distributed.init_process_group("gloo")
        self._torch = torch
        self._distributed = distributed
        self.rank: int = distributed.get_rank()
        self.world_size: int = distributed.get_world_size()
        self.version: str = f"torch {torch.__version__}"
        self.barrier: Callable[[], object] = distributed.barrier
        self.close: Callable[[], object] = distributed.destroy_process_group

    def all_reduce(self, x: Floats, y: Floats, options: dict[str, Any]) -> None:
        self._distributed.all_reduce(self._torch.from_numpy(y))

    def start(self, x: Floats, y: Floats, options: dict[str, Any]) -> Callable[[], object]:
        wait: Callable[[], object] = self._distributed.all_reduce(self._torch.from_numpy(y), async_op=True).wait
        return wait


KINDS: dict[str, Callable[[], Library]] = {"lanterne": Lanterne, "mpi": Mpi, "gloo": Gloo}


class Worker:
    """Carries out the orders: `prepare`, then any number of `call`."""

    def __init__(self, contender: Library) -> None:
        self._contender = contender
        self._x: Floats = np.empty(0, np.float32)
        self._total = self._x
        self._ys: list[Floats] = []

    def prepare(self, count: int, calls: int = 1) -> dict[str, Any]:
        """Buffers of `count` float32 for `calls` calls, and what must come out."""
        parts = [pattern(rank) for rank in range(self._contender.world_size)]
        self._x = np.resize(parts[self._contender.rank], count)
        self._ys, self._total = [np.empty_like(self._x) for _ in range(calls)], np.sum(parts, axis=0)
        self._reset()
        return {}

    def call(self, at_s: float, options: dict[str, Any]) -> dict[str, Any]:
        """Call at the instant `at_s` of CLOCK_MONOTONIC; when it began and ended, its CPU time, what is wrong.

        Several calls are started one after the other, then waited for.
        """
        wait_until(at_s)
        called_s, cpu_s = time.monotonic(), time.process_time()
        if len(self._ys) == 1:
            self._contender.all_reduce(self._x, self._ys[0], options)
        else:
            for wait in [self._contender.start(self._x, y, options) for y in self._ys]:
                wait()
        ended_s = time.monotonic()
        # What a library has taken over but not sent yet moves on in its next call only.
        self._contender.barrier()
        cpu_s = time.process_time() - cpu_s
        wrong = sum(count_wrong(y, self._total) for y in self._ys)
        self._reset()
        return {"called_s": called_s, "ended_s": ended_s, "cpu_s": cpu_s, "wrong": wrong}

    def _reset(self) -> None:
        for y in self._ys:
            if isinstance(self._contender, Gloo):
                np.copyto(y, self._x)
            else:
                y.view(np.uint8).fill(0xA5)


def pattern(rank: int) -> Floats:
    """(PERIOD,) float32 of small whole numbers, whose sums are exact."""
    index = np.arange(PERIOD, dtype=np.int64)
    return ((index * index * 7 + index * (rank + 3) + 13 * rank) % 17 - 8).astype(np.float32)


def count_wrong(array: Floats, total: Floats) -> int:
    """How many elements of `array` are not those of `total`, repeated."""
    whole = len(array) // PERIOD * PERIOD
    wrong = np.count_nonzero(array[:whole].reshape(-1, PERIOD) != total)
    return int(wrong + np.count_nonzero(array[whole:] != total[: len(array) - whole]))


def wait_until(at_s: float) -> None:
    """Return at the instant `at_s` of CLOCK_MONOTONIC."""
    while (left_s := at_s - time.monotonic()) > 0:
        if left_s > SPIN_S:
            time.sleep(left_s - SPIN_S)
        else:
            os.sched_yield()


def serve(contender: Library, stream: TextIO) -> None:
    """Answer the orders that come over `stream` until it ends."""

    def say(answer: dict[str, Any]) -> None:
        stream.write(json.dumps(answer) + "\n")
        stream.flush()

    worker = Worker(contender)
    say({"rank": contender.rank, "version": contender.version})
    for line in stream:
        order = json.loads(line)
        try:
            answer = getattr(worker, order.pop("verb"))(**order)
        except Exception as error:
            say({"error": f"{type(error).__name__}: {error}"})
            raise
        say(answer)


def main(kind: str, path: str) -> None:
    """Join the contender's job, then serve."""
    contender = KINDS[kind]()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        with sock.makefile("rw") as stream:
            serve(contender, stream)
    contender.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
