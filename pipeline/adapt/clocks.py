"""Clocks of several hosts: how far each rank's is from the coordinator's, by pings, as NTP does it.

time.monotonic() counts from when a host was started, so between hosts times can be compared only once that is known.
Of several pings the quickest tells most: its answer was made between its start and its end, so the offset is off by at
most half of what it took, however unlike the two ways are.
"""

import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lanterne.collectives.communicator import Communicator
from lanterne.collectives.message_lanes import Lane
from lanterne.transport.rank_group import host_identity

PINGS = 8


class Offsets(NamedTuple):
    """What to add to times of each rank's clock to have those of the root's.

    Attributes: (ranks,) float64, seconds: offset_s, and error_s, by how much that is off at most.
    """

    offset_s: NDArray[np.float64]
    error_s: NDArray[np.float64]


def share_a_clock(comm: Communicator) -> bool:
    """Whether all ranks of `comm` are on one host; all call it."""
    mine = np.zeros(128, np.uint8)
    name = host_identity().encode()[:128]
    mine[: len(name)] = np.frombuffer(name, np.uint8)
    every = np.empty((comm.world_size, len(mine)), np.uint8)
    comm.all_gather(mine, every.reshape(-1))
    return bool((every == mine).all())


def clock_offsets(
    comm: Communicator, root: int = 0, pings: int = PINGS, timeout_s: float | None = None
) -> Offsets | None:
    """The Offsets on rank `root`, None on the others; every rank of `comm` calls it.

    Cost: `pings` round trips with each rank, one rank after the other.
    """
    if comm.rank != root:
        _answer(comm, root, pings, timeout_s)
        return None
    offset_s, error_s = np.zeros((2, comm.world_size))
    for rank in range(comm.world_size):
        if rank != root:
            offset_s[rank], error_s[rank] = _ping(comm, rank, pings, timeout_s)
    return Offsets(offset_s, error_s)


def _ping(comm: Communicator, rank: int, pings: int, timeout_s: float | None) -> tuple[float, float]:
    """(offset, error) of a rank's clock."""
    word, answer, found = np.zeros(1), np.empty(2), []
    for _ in range(pings):
        asked_s = time.monotonic()
        comm.send(word, rank, tag=Lane.CLOCKS, timeout_s=timeout_s)
        comm.recv(answer, rank, tag=Lane.CLOCKS, timeout_s=timeout_s)
        ended_s = time.monotonic()
        came_s, left_s = answer.tolist()
        away_s = (ended_s - asked_s) - (left_s - came_s)
        found.append((away_s / 2, ((asked_s - came_s) + (ended_s - left_s)) / 2))
    error_s, offset_s = min(found)
    return offset_s, error_s


def _answer(comm: Communicator, root: int, pings: int, timeout_s: float | None) -> None:
    word, answer = np.empty(1), np.empty(2)
    for _ in range(pings):
        comm.recv(word, root, tag=Lane.CLOCKS, timeout_s=timeout_s)
        answer[0] = time.monotonic()
        answer[1] = time.monotonic()
        comm.send(answer, root, tag=Lane.CLOCKS, timeout_s=timeout_s)
