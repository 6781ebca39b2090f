"""The alpha-beta-gamma model: what a schedule costs, for any sizes and any start delays.

In a round the messages of a rank leave and arrive together; its send port carries the bytes of all that it sends, its
receive port those of all that it receives (full duplex). A message from a to b begins when both are ready and takes

    alpha + beta * max(bytes at a's send port, bytes at b's receive port)

so the one round of allpairs' reduce-scatter costs alpha + (p - 1)/p s beta. A rank is ready for its next round once all
its messages of this one are done and what it had to add is added, gamma a byte. No barrier: a late rank delays those
that wait for it.

That is of equal links, a CostModel. Whatever else says what the messages of a round take is a LinkCosts, too, such as a
Topology (topology/topology.py), where ranks share links.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lanterne.collectives.schedule.contracts import CONTRACTS
from lanterne.collectives.schedule.ir import REDUCE, CollectiveSchedule, Column, Ints, LateRank, late_set
from lanterne.errors import InputError

# One number, or an array of them.
Numbers = TypeVar("Numbers", float, NDArray[np.float64])


class LinkCosts(Protocol):
    """What messages and sums cost."""

    @property
    def gamma_s_per_byte(self) -> float:
        """Time to add one received byte, s per byte."""
        ...

    def round_s(self, src: Column, dst: Column, nbytes: float, world_size: int) -> NDArray[np.float64]:
        """Seconds of the message of each transfer of one round, (transfers,), every chunk having `nbytes`."""
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
    """

    alpha_s: float
    beta_s_per_byte: float
    gamma_s_per_byte: float = 0.0
    pieces: tuple[Piece, ...] = ()
    serial_messages: bool = False

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

    def message_s(self, nbytes: Numbers, messages: Any = 1) -> Numbers:
        """Time of a message whose busier port carries `nbytes` in `messages` messages; vectorised."""
        alpha, beta = self.alpha_beta(nbytes)
        time_s: Any = alpha * (messages if self.serial_messages else 1) + beta * nbytes
        return time_s

    def round_s(self, src: Column, dst: Column, nbytes: float, world_size: int) -> NDArray[np.float64]:
        """See LinkCosts: every rank has a port of its own."""
        sent, received = np.bincount(src, minlength=world_size), np.bincount(dst, minlength=world_size)
        messages = num_messages(src, dst, src, dst, world_size) if self.serial_messages else 1
        return self.message_s(nbytes * np.maximum(sent[src], received[dst]), messages)


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
    p = schedule.world_size
    start = np.array(
        np.broadcast_to(np.asarray(start_delay_s, float), (p,)) if np.ndim(start_delay_s) == 0 else start_delay_s, float
    )
    if start.shape != (p,) or not np.isfinite(start).all() or (start < 0).any():
        raise InputError(
            f"{schedule.name}: got start delays {start_delay_s}, expected {p} finite numbers, none negative"
        )
    unit = chunk_nbytes(schedule, nbytes)
    ready, load, added = start.copy(), 0, 0
    for index in range(schedule.num_rounds):
        src, dst, _, op = schedule.columns(index)
        if not len(src):
            continue
        sent, received = np.bincount(src, minlength=p), np.bincount(dst, minlength=p)
        reduced = np.bincount(dst[op == REDUCE], minlength=p)
        took_s = links.round_s(src, dst, unit, p)
        done = np.maximum(ready[src], ready[dst]) + took_s
        np.maximum.at(ready, src, done)
        np.maximum.at(ready, dst, done)
        ready += links.gamma_s_per_byte * unit * reduced
        load += max(sent.max(), received.max())
        added += reduced.max()
    scale = unit / nbytes if nbytes else 0.0
    end = float(ready.max())
    return Cost(ready, end, end - float(start.max()), schedule.num_rounds, float(load * scale), float(added * scale))


def num_messages(src: Column, dst: Column, leaves: Ints | Column, enters: Ints | Column, links: int) -> Ints:
    """For every transfer, the messages at the busier of the two links that it `leaves` and `enters`, of `links`."""
    _, firsts = np.unique(src.astype(np.int64) << 32 | dst, return_index=True)
    sent, received = (np.bincount(side[firsts], minlength=links) for side in (leaves, enters))
    return np.maximum(sent[leaves], received[enters])


def late_start(world_size: int, late_rank: LateRank, delay_s: float) -> NDArray[np.float64]:
    """Start delays of `world_size` ranks of which only `late_rank` (a rank, a tuple of some, or None) comes late."""
    start = np.zeros(world_size)
    start[list(late_set(late_rank))] = delay_s
    return start
