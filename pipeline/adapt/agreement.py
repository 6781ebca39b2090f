"""How the ranks of a pipeline agree on a change: reports to a coordinator, which answers every rank with one verdict.

Nobody waits for a report: the coordinator takes those that have come. Each rank waits for one verdict after each
iteration; the coordinator is the rank that begins the next iteration anyway, so it is there before the first
microbatch. The messages go around emulated links, and are small: 8 bytes where nothing changes.
"""

from collections import deque

import numpy as np

REPORT_TAG, VERDICT_TAG = 30, 29


class Agreement:
    """One rank's end.

    Args:
        comm: a Communicator of all ranks that change together, of this object alone.
        root: the coordinator.
    """

    def __init__(self, comm, root=0):
        self.comm, self.root = comm, root
        # On the coordinator: per other rank the reports to come, oldest first, as (request, array).
        self._coming = {rank: deque() for rank in range(comm.world_size) if rank != root}
        self._own = deque()

    @property
    def is_root(self):
        """Whether this rank is the coordinator."""
        return self.comm.rank == self.root

    def report(self, array, lengths):
        """Hand over this rank's report of an iteration.

        Args:
            array: (length,) float64.
            lengths: of the reports of all ranks, by rank.
        """
        if not self.is_root:
            self.comm.start_send(array, self.root, tag=REPORT_TAG)
            return
        self._own.append(array)
        for rank, coming in self._coming.items():
            buffer = np.empty(lengths[rank])
            coming.append((self.comm.start_recv(buffer, rank, tag=REPORT_TAG), buffer))

    def collect(self, wait=False):
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

    def verdict(self, payload=None):
        """The bytes that the coordinator gives, on every rank; b"" where nothing changes.

        Args:
            payload: on the coordinator, those.

        Raises:
            TransportTimeout, PeerFailed: it did not come.
        """
        if self.is_root:
            head, body = np.array([len(payload)], np.int64), np.frombuffer(payload, np.uint8)
            for rank in self._coming:
                self.comm.start_send(head, rank, tag=VERDICT_TAG)
                if len(body):
                    self.comm.start_send(body, rank, tag=VERDICT_TAG)
            return payload
        head = np.empty(1, np.int64)
        self.comm.recv(head, self.root, tag=VERDICT_TAG)
        body = np.empty(int(head[0]), np.uint8)
        if len(body):
            self.comm.recv(body, self.root, tag=VERDICT_TAG)
        return body.tobytes()

    def close(self):
        """Release the communicator."""
        self.comm.close()
