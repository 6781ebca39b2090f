"""The alpha-beta-gamma model: what a schedule costs, for any sizes and any start delays.

In a round the messages of a rank leave and arrive together; its send port carries the bytes of all that it sends, its
receive port those of all that it receives (full duplex). A message from a to b begins when both are ready and takes

    alpha + beta * max(bytes at a's send port, bytes at b's receive port)

so the one round of allpairs' reduce-scatter costs alpha + (p - 1)/p s beta. A rank is ready for its next round once all
its messages of this one are done and what it had to add is added, gamma a byte. No barrier: a late rank delays those
that wait for it. All messages of a round share ports, whenever they begin; where late ranks come when all else is over,
what waits for them does not meet the rest, and is priced by itself (passes.waiting_part).

That is of equal links, a CostModel. Whatever else says what the messages of a round take is a LinkCosts, too, such as a
Topology (topology/topology.py), where ranks share links. Where those, or nodes, differ, ranks that have less to do are
ahead, and messages of several rounds meet on links in ways that no sum over a round tells: then it goes from event to
event (topology/flows.py).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lanterne.collectives.schedule.contracts import CONTRACTS
from lanterne.collectives.schedule.ir import REDUCE, CollectiveSchedule, Ints, LateRank, late_set
from lanterne.errors import InputError

# One number, or an array of them.
Numbers = TypeVar("Numbers", float, NDArray[np.float64])

# (rank, round) pairs that are priced at once: all rounds of small schedules, and of large ones what caches hold.
BLOCK = 1 << 16


class LinkCosts(Protocol):
    """What messages and sums cost."""

    @property
    def gamma_s_per_byte(self) -> float:
        """Time to add one received byte, s per byte."""
        ...

    def messages_s(self, round_of: Ints, src: Ints, dst: Ints, nbytes: float, world_size: int) -> NDArray[np.float64]:
        """Seconds of the message of each transfer, (transfers,), every chunk having `nbytes`.

        Args:
            round_of: the round of each transfer, from 0: those of one share ports.
        """
        ...

    def finish_s(
        self, schedule: CollectiveSchedule, nbytes: float, start_s: NDArray[np.float64]
    ) -> NDArray[np.float64] | None:
        """When each rank is done, where a sum over rounds does not tell what links do; None: nowhere.

        Args:
            nbytes: of the larger of a rank's two buffers.
            start_s: (world_size,) when each rank comes.
        """
        ...


class Piece(NamedTuple):
    """Alpha and beta of messages from `nbytes` up."""

    nbytes: float
    alpha_s: float
    beta_s_per_byte: float


@dataclass(frozen=True)
class CostModel:
    """What a message costs; piecewise linear in its size where `pieces` says so.

    Attributes:
        alpha_s: start-up time of a message, s.
        beta_s_per_byte: inverse bandwidth of a port, s per byte.
        gamma_s_per_byte: time to add one received byte, s per byte.
        pieces: Piece tuple, ascending in nbytes; below the first the two above hold.
        serial_messages: True if a port pays alpha for each of its messages, one after the other.
        in_rounds: True where a message starts only once those before it are done, as on streams: no start overlaps.
    """

    alpha_s: float
    beta_s_per_byte: float
    gamma_s_per_byte: float = 0.0
    pieces: tuple[Piece, ...] = ()
    serial_messages: bool = False
    in_rounds: bool = False

    def __post_init__(self) -> None:
        pieces = tuple(Piece(*piece) for piece in self.pieces)
        object.__setattr__(self, "pieces", pieces)
        numbers = [self.alpha_s, self.beta_s_per_byte, self.gamma_s_per_byte, *(x for piece in pieces for x in piece)]
        if not all(np.isfinite(numbers)) or min(numbers) < 0:
            raise InputError(f"cost model: got {self}, expected finite numbers, none negative")
        sizes = [piece.nbytes for piece in pieces]
        if sorted(set(sizes)) != sizes:
            raise InputError(f"cost model: got pieces from {sizes} bytes, expected ascending sizes")

    def alpha_beta(self, nbytes: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(alpha_s, beta_s_per_byte) for ports that carry `nbytes` (float array): two arrays."""
        table: NDArray[np.float64] = np.array([(0.0, self.alpha_s, self.beta_s_per_byte), *self.pieces])
        row = np.searchsorted(table[:, 0], nbytes, side="right") - 1
        return table[row, 1], table[row, 2]

    def slowed(self, times: float) -> "CostModel":
        """The same where bytes take so many times as long."""
        pieces = tuple(piece._replace(beta_s_per_byte=times * piece.beta_s_per_byte) for piece in self.pieces)
        return replace(self, beta_s_per_byte=times * self.beta_s_per_byte, pieces=pieces)

    def message_s(self, nbytes: Numbers, messages: Any = 1) -> Numbers:
        """Time of a message whose busier port carries `nbytes` in `messages` messages; vectorised."""
        alpha, beta = self.alpha_beta(nbytes)
        time_s: Any = alpha * (messages if self.serial_messages else 1) + beta * nbytes
        return time_s

    def messages_s(self, round_of: Ints, src: Ints, dst: Ints, nbytes: float, world_size: int) -> NDArray[np.float64]:
        """See LinkCosts: every rank has a port of its own."""
        leaves, enters = round_of * world_size + src, round_of * world_size + dst
        load = nbytes * np.maximum(np.bincount(leaves)[leaves], np.bincount(enters)[enters])
        return self.message_s(load, num_messages(leaves, enters, leaves, enters) if self.serial_messages else 1)

    def finish_s(
        self, schedule: CollectiveSchedule, nbytes: float, start_s: NDArray[np.float64]
    ) -> NDArray[np.float64] | None:
        """See LinkCosts: ports are alike."""
        return None


@dataclass(frozen=True, eq=False)
class Cost:
    """The price of a schedule.

    Attributes:
        finish_s: (world_size,) when each rank is done, s after the earliest start.
        makespan_s: when the last rank is done.
        exposed_s: from the latest start to the end, what a late rank still waits.
        rounds: number of rounds.
        load: port load in multiples of nbytes: the sum over rounds of the busiest port's.
        added: the same for the bytes that a rank adds.
    """

    finish_s: NDArray[np.float64]
    makespan_s: float
    exposed_s: float
    rounds: int
    load: float
    added: float


def chunk_nbytes(schedule: CollectiveSchedule, nbytes: float) -> float:
    """Bytes of one chunk, a float, when the larger of a rank's two buffers has `nbytes` bytes."""
    contract = CONTRACTS[schedule.collective]
    p = schedule.world_size
    if schedule.collective == "barrier":
        return 0.0
    return nbytes / contract.buffer_parts(p) / (schedule.num_chunks // contract.parts(p))


def price(
    schedule: CollectiveSchedule,
    nbytes: float,
    links: LinkCosts,
    start_delay_s: float | Sequence[float] | NDArray[np.float64] = 0.0,
) -> Cost:
    """The Cost of `schedule`.

    Args:
        schedule: a CollectiveSchedule.
        nbytes: bytes of the larger of a rank's two buffers.
        links: a CostModel or a Topology.
        start_delay_s: when each rank calls: (world_size,), or one number for all.

    Raises:
        InputError: delays of another length, negative or not finite.
    """
    p, unit = schedule.world_size, chunk_nbytes(schedule, nbytes)
    start = _start_of(schedule, start_delay_s)
    finish_s = links.finish_s(schedule, nbytes, start)
    ready = start.copy() if finish_s is None else finish_s
    load = added = 0
    for rounds in _blocks(schedule):
        offsets = schedule.offsets[rounds.start : rounds.stop + 1]
        part = slice(offsets[0], offsets[-1])
        # NumPy indexes by narrower numbers three times as slowly.
        src, dst = (column[part].astype(np.int64) for column in (schedule.src, schedule.dst))
        reduces = schedule.op[part] == REDUCE
        round_of = np.repeat(np.arange(len(rounds)), np.diff(offsets))
        sent, received, reduced = (
            np.bincount(round_of[mask] * p + side[mask], minlength=len(rounds) * p).reshape(-1, p)
            for side, mask in ((src, slice(None)), (dst, slice(None)), (dst, reduces))
        )
        load += np.maximum(sent.max(axis=1), received.max(axis=1)).sum()
        added += reduced.max(axis=1).sum()
        if finish_s is None:
            took_s = links.messages_s(round_of, src, dst, unit, p)
            adding_s = np.asarray(links.gamma_s_per_byte * unit * reduced, np.float64)
            _walk(ready, (offsets - offsets[0]).tolist(), src, dst, took_s, adding_s)
    scale = unit / nbytes if nbytes else 0.0
    end = float(ready.max())
    exposed_s = end - float(start.max())
    return Cost(ready, end, exposed_s, schedule.num_rounds, float(load * scale), float(added * scale))


def _walk(
    ready: NDArray[np.float64],
    bounds: Sequence[int],
    src: Ints,
    dst: Ints,
    took_s: NDArray[np.float64],
    adding_s: NDArray[np.float64],
) -> None:
    """Turn `ready`, when each rank is there, into when it is done.

    Args:
        bounds: where each round's transfers begin, and the end of all.
        adding_s: (rounds, ranks).
    """
    for index, (begin, end) in enumerate(pairwise(bounds)):
        its_src, its_dst = src[begin:end], dst[begin:end]
        done = np.maximum(ready[its_src], ready[its_dst]) + took_s[begin:end]
        np.maximum.at(ready, its_src, done)
        np.maximum.at(ready, its_dst, done)
        ready += adding_s[index]


def _blocks(schedule: CollectiveSchedule) -> Iterator[range]:
    """The rounds of `schedule` in ranges of some BLOCK pairs of a rank and a round."""
    size = max(1, BLOCK // schedule.world_size)
    for first in range(0, schedule.num_rounds, size):
        yield range(first, min(first + size, schedule.num_rounds))


def _start_of(
    schedule: CollectiveSchedule, start_delay_s: float | Sequence[float] | NDArray[np.float64]
) -> NDArray[np.float64]:
    p = schedule.world_size
    given = np.asarray(start_delay_s, float)
    start = np.full(p, given) if given.ndim == 0 else given
    if start.shape != (p,) or not np.isfinite(start).all() or (start < 0).any():
        raise InputError(
            f"{schedule.name}: got start delays {start_delay_s}, expected {p} finite numbers, none negative"
        )
    return start


def num_messages(src: Ints, dst: Ints, leaves: Ints, enters: Ints) -> Ints:
    """For every transfer, the messages at the busier of the two links that it `leaves` and `enters`.

    Args:
        src, dst: the ranks, with the round: those from one to the other in one round are one message.
    """
    _, firsts = np.unique(src << 32 | dst, return_index=True)
    sent = np.bincount(leaves[firsts], minlength=1 + leaves.max(initial=0))
    received = np.bincount(enters[firsts], minlength=1 + enters.max(initial=0))
    return np.maximum(sent[leaves], received[enters])


def late_start(world_size: int, late_rank: LateRank, delay_s: float) -> NDArray[np.float64]:
    """Start delays of `world_size` ranks of which only `late_rank` (a rank, a tuple of some, or None) comes late."""
    start = np.zeros(world_size)
    start[list(late_set(late_rank))] = delay_s
    return start
