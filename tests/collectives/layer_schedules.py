"""A reduce-scatter and an all-gather that wait for the last rank only with what needs it; at once, they fill its port.

Of the reduce-scatter the late rank sends nearly all of its part and receives one share; of the all-gather it is the
other way round. Each takes nearly a whole pass after that rank has come, and both together take one.
"""

import numpy as np

from lanterne.collectives.schedule.ir import COPY, REDUCE, ScheduleBuilder


def late_reduce_scatter(world_size):
    """The others sum among themselves; the last rank adds its part to each sum, and gets its own from all in pieces."""
    others = late = world_size - 1
    ranks = np.arange(others)
    build = ScheduleBuilder("reduce_scatter", "late_layers", world_size, world_size * others, ports=2)
    build.phase("reduce_scatter")
    for i in range(others - 1):
        part = (ranks - 1 - i) % others
        pieces = ranks, (ranks + 1) % others, late * others + part
        build.round((*_together(_shares(ranks, (ranks + 1) % others, part, others), pieces), REDUCE))
    build.phase("join")
    for rank in range(others):
        pieces = [rank], [late], [late * others + rank]
        build.round((*_together(_shares([late], [rank], np.array([rank]), others), pieces), REDUCE))
    return build.build()


def late_all_gather(world_size):
    """The others gather among themselves; they give the last rank a share each, and pass its pieces around."""
    others = late = world_size - 1
    ranks = np.arange(others)
    build = ScheduleBuilder("all_gather", "late_layers", world_size, world_size * others, ports=2)
    build.phase("all_gather")
    for i in range(others - 1):
        build.round((*_shares(ranks, (ranks + 1) % others, (ranks - i) % others, others), COPY))
    build.phase("join")
    for i in range(2 * others - 1):
        # Piece p comes to rank p in round p, and goes on from then on.
        piece = ranks[(i - ranks > 0) & (i - ranks < others)]
        at = (i - 1) % others
        moves = [(np.full(len(piece), at), np.full(len(piece), (at + 1) % others), late * others + piece)]
        if i < others:
            moves += [_shares([i], [late], np.array([i]), others), ([late], [i], [late * others + i])]
        build.round((*_together(*moves), COPY))
    return build.build()


def _shares(src, dst, share, pieces):
    """(sources, destinations, chunks) of whole shares, of so many chunks each."""
    chunks = (share[:, None] * pieces + np.arange(pieces)).ravel()
    return np.repeat(src, pieces), np.repeat(dst, pieces), chunks


def _together(*moves):
    return tuple(np.concatenate(each) for each in zip(*moves, strict=True))
