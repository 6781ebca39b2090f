"""How ranks agree: on a change, by a coordinator's verdict, or on what rank 0 finds out (`from_first`).

Nobody waits for a report: the coordinator takes those that have come. Each rank waits for one verdict after each
iteration; the coordinator is the rank that begins the next iteration anyway, so it is there before the first
microbatch. The messages go around emulated links, and are small: 8 bytes where nothing changes.
"""

import json
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lanterne.collectives.communicator import Communicator
from lanterne.collectives.execute.requests import MessageRequest
from lanterne.collectives.message_lanes import Lane
from lanterne.errors import InputError, LanterneError

# The other ranks wait so long for the plans of the first: some schedulers search for a minute.
PLANNING_S = 600.0
# What a rank measured in an iteration, packed; see profile.py.
Report: TypeAlias = NDArray[np.float64]


class Agreement:
    """One rank's end.

    Args:
        comm: a Communicator of all ranks that change together, of this object alone.
        root: the coordinator.
    """

    def __init__(self, comm: Communicator, root: int = 0) -> None:
        self.comm = comm
        self.root = root
        # On the coordinator: per other rank the reports to come, oldest first.
        self._coming: dict[int, deque[tuple[MessageRequest, Report]]] = {
            rank: deque() for rank in range(comm.world_size) if rank != root
        }
        self._own: deque[Report] = deque()

    @property
    def is_root(self) -> bool:
        """Whether this rank is the coordinator."""
        return self.comm.rank == self.root

    def report(self, array: Report, lengths: Sequence[int]) -> None:
        """Hand over this rank's report of an iteration.

        Args:
            array: (length,).
            lengths: of the reports of all ranks, by rank.
        """
        if not self.is_root:
            self.comm.start_send(array, self.root, tag=Lane.ADAPT_REPORT)
            return
        self._own.append(array)
        for rank, coming in self._coming.items():
            buffer = np.empty(lengths[rank])
            coming.append((self.comm.start_recv(buffer, rank, tag=Lane.ADAPT_REPORT), buffer))

    def collect(self, *, wait: bool = False) -> list[list[Report]]:
        """On the coordinator: per iteration of which all reports have come, those of all ranks; oldest first.

        Args:
            wait: for those of every iteration that this rank has handed over its own of.
        """
        complete = []
        while self._own and (wait or all(coming and coming[0][0].test() for coming in self._coming.values())):
            for coming in self._coming.values():
                coming[0][0].wait()
            reports = {self.root: self._own.popleft()}
            reports |= {rank: coming.popleft()[1] for rank, coming in self._coming.items()}
            complete.append([reports[rank] for rank in range(self.comm.world_size)])
        return complete

    def verdict(self, payload: bytes | None = None) -> bytes:
        """The bytes that the coordinator gives, on every rank; b"" where nothing changes.

        Args:
            payload: on the coordinator, those.

        Raises:
            TransportTimeout, PeerFailed: it did not come.
        """
        if self.is_root:
            assert payload is not None
            head, body = np.array([len(payload)], np.int64), np.frombuffer(payload, np.uint8)
            for rank in self._coming:
                self.comm.start_send(head, rank, tag=Lane.ADAPT_VERDICT)
                if len(body):
                    self.comm.start_send(body, rank, tag=Lane.ADAPT_VERDICT)
            return payload
        head = np.empty(1, np.int64)
        self.comm.recv(head, self.root, tag=Lane.ADAPT_VERDICT)
        body = np.empty(int(head[0]), np.uint8)
        if len(body):
            self.comm.recv(body, self.root, tag=Lane.ADAPT_VERDICT)
        return body.tobytes()

    def close(self) -> None:
        """Release the communicator."""
        self.comm.close()


def from_first(comm: Communicator, make: Callable[[], Any], timeout_s: float | None = None) -> Any:
    """The value that `make()`, called on rank 0 of `comm` only, returns, on every rank: anything that JSON holds.

    Args:
        timeout_s: how long the others wait for it; None for the communicator's.

    Raises:
        LanterneError: make raised it; an InputError on the other ranks too if it was one.
    """
    value: Any = None
    error: LanterneError | None = None
    if comm.rank == 0:
        try:
            value = make()
        except LanterneError as raised:
            error = raised
    words = json.dumps([value, None if error is None else [isinstance(error, InputError), str(error)]]).encode()
    size = np.array([len(words)])
    comm.broadcast(size, timeout_s=timeout_s)
    data = np.frombuffer(bytearray(words), np.uint8) if comm.rank == 0 else np.empty(size[0], np.uint8)
    comm.broadcast(data)
    value, told = json.loads(data.tobytes())
    if error is not None:
        raise error
    if told is not None:
        raise (InputError if told[0] else LanterneError)(told[1])
    return value
