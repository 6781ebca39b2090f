"""What each collective promises: where every part of the data starts and where its result must end.

The chunks of a schedule fall into equal *parts*, in order; a part is what the user's buffers are made of. A part starts
either on every rank (each with its own contribution, to be summed) or on one rank, and its result ends on every rank or
on one:

    collective      parts          starts at        ends at
    all_reduce      1              every rank       every rank
    reduce          1              every rank       root
    reduce_scatter  p              every rank       rank `part`
    broadcast       1              root             every rank
    all_gather      p              rank `part`      every rank
    all_to_all      p * p          rank part // p   rank part % p
    barrier         p, no bytes    rank `part`      every rank

One rule maps chunks to buffers: the input array of a rank is the concatenation, in index order, of the chunks that
start at it; its output array is the concatenation of the chunks that end at it (see `chunk_layout.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lanterne.errors import ScheduleError

EVERY = -1


@dataclass(frozen=True)
class Contract:
    """Pre- and postcondition of a collective.

    Attributes: `name`; `parts`: p -> number of parts; `starts_at`, `ends_at`: (part, p, root) -> rank or EVERY,
    vectorised over `part`; `buffer_parts`: p -> parts in the larger of a rank's two arrays; `rooted`.
    """

    name: str
    parts: Callable
    starts_at: Callable
    ends_at: Callable
    buffer_parts: Callable
    rooted: bool = False

    @property
    def reduces(self):
        """True if contributions are summed."""
        return self.starts_at(0, 1, 0) == EVERY


def _one(p):
    return 1


def _p(p):
    return p


def _every(part, p, root):
    return part * 0 + EVERY


def _root(part, p, root):
    return part * 0 + root


def _part(part, p, root):
    return part


CONTRACTS = {
    contract.name: contract
    for contract in (
        Contract("all_reduce", _one, _every, _every, _one),
        Contract("reduce", _one, _every, _root, _one, rooted=True),
        Contract("reduce_scatter", _p, _every, _part, _p),
        Contract("broadcast", _one, _root, _every, _one, rooted=True),
        Contract("all_gather", _p, _part, _every, _p),
        Contract("all_to_all", lambda p: p * p, lambda part, p, root: part // p, lambda part, p, root: part % p, _p),
        Contract("barrier", _p, _part, _every, _p),
    )
}


def contract_of(schedule):
    """The Contract of `schedule`, once its collective, chunk count and root are known to fit it.

    Raises:
        ScheduleError: unknown collective, chunks that do not fill the parts equally, root missing or out of range.
    """
    contract = CONTRACTS.get(schedule.collective)
    if contract is None:
        raise ScheduleError(
            f"{schedule.name}: got collective {schedule.collective!r}, expected one of {', '.join(CONTRACTS)}"
        )
    parts = contract.parts(schedule.world_size)
    if schedule.num_chunks % parts:
        raise ScheduleError(f"{schedule.name}: got {schedule.num_chunks} chunks, expected a multiple of {parts}")
    if contract.rooted and (schedule.root is None or not 0 <= schedule.root < schedule.world_size):
        raise ScheduleError(f"{schedule.name}: got root {schedule.root}, expected 0 to {schedule.world_size - 1}")
    if not contract.rooted and schedule.root is not None:
        raise ScheduleError(f"{schedule.name}: got root {schedule.root}, expected none for {schedule.collective}")
    return contract


def starts_at(schedule, chunk):
    """Rank at which each of `chunk` (int array) starts, or EVERY."""
    return _ends(schedule, chunk, "starts_at")


def ends_at(schedule, chunk):
    """Rank at which each of `chunk` (int array) must end, or EVERY."""
    return _ends(schedule, chunk, "ends_at")


def _ends(schedule, chunk, which):
    contract = CONTRACTS[schedule.collective]
    pieces = schedule.num_chunks // contract.parts(schedule.world_size)
    part = np.asarray(chunk, np.int64) // pieces
    return getattr(contract, which)(part, schedule.world_size, schedule.root)
