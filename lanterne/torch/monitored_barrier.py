"""A barrier that says who did not come: torch.distributed.monitored_barrier.

Rank 0 hears of every other that it is there, and answers all that came by whom it missed: nobody, and they pass. Each
attempt of a rank has a number, which the answer repeats; a rank that gives up says so. So whoever has failed once,
alone or with all, can come again.
"""

from collections.abc import Sequence

import numpy as np

from lanterne.collectives.communicator import Communicator
from lanterne.errors import TransportTimeout
from lanterne.transport.machine import THIS_MACHINE

# No message of torch's has such a tag: it takes 31 bits of them.
TAG = 1 << 62
CAME, GAVE_UP = 1, 0


# Between two looks at what has come: a wait of the communicator's that runs out of time would end it.
LOOK_S = 1e-3  # hundreds of microseconds are a message's
# How much later than another rank rank 0 may begin, and still answer it: else who came sooner would count as missing.
LATER_S = 1.0


class MonitoredBarrier:
    """The monitored barriers of one communicator, which go on working where one did not pass."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._mailbox = comm.mailbox()
        self._attempt = 0
        # On rank 0: the attempt that each other rank waits in.
        self._present: dict[int, int] = {}

    def wait(self, limit_s: float, *, all_ranks: bool) -> None:
        """Return once every rank has called it.

        Args:
            all_ranks: rank 0 names all that it missed, else the first.

        Raises:
            TransportTimeout: on every rank that came, after `limit_s` or as soon as rank 0 has given up.
        """
        if self._comm.rank == 0:
            self._answer(limit_s, all_ranks=all_ranks)
        else:
            self._ask(limit_s)

    def _answer(self, limit_s: float, *, all_ranks: bool) -> None:
        until_s = THIS_MACHINE.now_s() + limit_s
        missing = self._missing()
        while missing and THIS_MACHINE.now_s() < until_s:
            THIS_MACHINE.sleep(LOOK_S)
            missing = self._missing()
        present, self._present = self._present, {}
        for peer, attempt in present.items():
            self._tell(peer, attempt, *missing)
        if not missing:
            return
        if limit_s <= 0:
            raise TransportTimeout(f"Rank {self._comm.ranks[0]} timed out in monitoredBarrier: got no time", missing)
        named = _named(missing if all_ranks else missing[:1])
        raise TransportTimeout(f"{named} failed to pass monitoredBarrier in {limit_s * 1e3:.0f} ms", missing)

    def _missing(self) -> list[int]:
        """The ranks, as the job numbers them, that have not come by now."""
        comm = self._comm
        for peer in range(1, comm.world_size):
            while (told := self._hear(peer)) is not None:
                attempt, what = told
                if what == CAME:
                    self._present[peer] = attempt
                else:
                    self._present.pop(peer, None)
        return [comm.ranks[peer] for peer in range(1, comm.world_size) if peer not in self._present]

    def _ask(self, limit_s: float) -> None:
        self._attempt += 1
        until_s = THIS_MACHINE.now_s() + limit_s + min(limit_s, LATER_S)
        self._tell(0, self._attempt, CAME)
        told = self._hear(0)
        # Answers to earlier attempts came too late.
        while (told is None or told[0] != self._attempt) and THIS_MACHINE.now_s() < until_s:
            if told is None:
                THIS_MACHINE.sleep(LOOK_S)
            told = self._hear(0)
        comm = self._comm
        reached = (
            f"Rank {comm.ranks[comm.rank]} successfully reached monitoredBarrier, but received errors while waiting "
            f"for send/recv from rank {comm.ranks[0]}"
        )
        if told is None or told[0] != self._attempt:
            self._tell(0, self._attempt, GAVE_UP)
            raise TransportTimeout(f"{reached}, which did not answer in {limit_s * 1e3:.0f} ms", (comm.ranks[0],))
        if missing := told[1:]:
            raise TransportTimeout(f"{reached}: {_named(missing)} did not come", missing)

    def _tell(self, peer: int, *numbers: int) -> None:
        self._mailbox.send(np.array(numbers, np.int64), peer, tag=TAG)

    def _hear(self, peer: int) -> list[int] | None:
        """The next message of `peer`; None: there is none by now."""
        announced = self._mailbox.probe(peer, tag=TAG)
        if announced is None:
            return None
        numbers = np.empty(announced.nbytes // 8, np.int64)
        self._mailbox.recv(numbers, peer, tag=TAG)
        return [int(each) for each in numbers]


def _named(ranks: Sequence[int]) -> str:
    return f"Rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
