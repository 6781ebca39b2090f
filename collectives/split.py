"""Communicators of a part of the ranks: how all agree on their members and on an id that none of them uses."""

import numpy as np

from lanterne.collectives.execute.arguments import check_whole
from lanterne.errors import InputError
from lanterne.transport.base import COMMUNICATOR_BITS

# What is known of an id; of none, 0.
CLOSED, OPEN = 1, 2


def split(comm, color, key, transport):
    """What `Communicator.split` returns; see there."""
    check_whole("split: got color", color, -(2**63), 2**63 - 1)
    check_whole("split: got key", key, -(2**63), 2**63 - 1)
    mine = np.array([color, key], np.int64)
    everyone = np.empty((comm.world_size, 2), np.int64)
    comm.all_gather(mine, everyone)
    free = _free_id(comm)
    if color < 0:
        return None
    members = [rank for rank in range(comm.world_size) if everyone[rank, 0] == color]
    members.sort(key=lambda rank: (everyone[rank, 1], rank))
    board_key = f"{comm.late.key[-200:]}.{comm.number}/{free}:{members[0]}"
    ranks = [comm.ranks[rank] for rank in members]
    child = type(comm)(transport or comm.transport, ranks, free, comm.used_ids, board_key=board_key)
    child.timeout_s, child.pauses, child.deterministic = comm.timeout_s, comm.pauses, comm.deterministic
    tuning = comm.tuning
    child.tuning.adopt(tuning.model, tuning.source, tuning.factors if len(ranks) == comm.world_size else ())
    return child


def _free_id(comm):
    """An id that no member uses, the same on all."""
    used = np.zeros(1 << COMMUNICATOR_BITS, np.uint8)
    used[list(comm.used_ids)] = list(comm.used_ids.values())
    comm.all_reduce(used, used, op="max")
    # The last id belongs to the transports. That of a closed one comes last: a notice (see execute/control.py) that nobody
    # has read may still be on its way there.
    free = int(used[:-1].argmin())
    if used[free] == OPEN:
        raise InputError(f"split: got no free communicator id, expected fewer than {len(used) - 1} open communicators")
    return free
