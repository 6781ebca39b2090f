"""Which hosts have a slower NIC than the others: found by messages of pairs of hosts, each host in two of them.

A ring, by which the model of links between hosts is measured, is as fast as its slowest link, and does not tell which.
Here the first ranks of neighbouring hosts exchange a message, all pairs at once, then the other way around the circle.
The better of its two pairs is what a host can do: only of three slow ones in a row the one in the middle is not told.

The messages follow each other for a while, and the middle one of those behind the first counts: that takes what a token
bucket lets through at once. They are long, so that a link has something to send while a rank waits for a core.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lanterne.collectives.auto.trials import finish, trial_array
from lanterne.collectives.schedule.cost import CostModel

if TYPE_CHECKING:
    from lanterne.collectives.auto.trials import TrialGroup

# A message that takes about so long on a link as it was measured, within these sizes: the lab's buckets hold 128 kB.
MESSAGE_S, LEAST_NBYTES, MOST_NBYTES = 40e-3, 256 << 10, 4 << 20
# A pair sends them for so long, and FEWEST at least, behind the first.
SERIES_S, FEWEST = 100e-3, 3
# Less is what cores that others use, or a NIC's other traffic, make of it for a while.
LEAST_SLOWDOWN = 1.5
# Of fewer hosts each is in the same pair twice, or in the way of the others.
LEAST_HOSTS = 4


def measure_slowdowns(firsts: "TrialGroup", model: CostModel) -> tuple[float, ...]:
    """By host, how much slower its NIC is than that of the middle one; empty where none is by LEAST_SLOWDOWN.

    Args:
        firsts: the first ranks of the hosts, in their order. A collective call of these.
        model: of messages between them.

    Cost: 0.3 s, twice that where a NIC is slow.
    """
    hosts = firsts.world_size
    if hosts < LEAST_HOSTS:
        return ()
    _, beta = (float(each) for each in model.alpha_beta(MOST_NBYTES))
    nbytes = int(np.clip(MESSAGE_S / max(beta, 1e-15), LEAST_NBYTES, MOST_NBYTES))
    best_s = np.full(hosts, np.inf)
    found: tuple[float, ...] = ()
    for shift in (0, 1, 0, 1):
        with firsts.split(((firsts.rank - shift) % hosts) // 2) as pair:
            took_s = np.inf
            if pair.world_size == 2:
                took_s = exchange_s(pair, nbytes)
        mine, everyone = np.array([took_s]), np.zeros(hosts)
        firsts.all_gather(mine, everyone, algorithm="ring")
        best_s = np.minimum(best_s, everyone)
        found = slowdowns(best_s)
        # Who is slow twice was not just disturbed.
        if shift == 1 and not found:
            break
    return found


def exchange_s(pair: "TrialGroup", nbytes: int) -> float:
    """Seconds in which the two ranks of `pair` usually exchange messages of `nbytes` that follow each other."""
    part = trial_array(pair, nbytes // 4)
    whole = trial_array(pair, 2 * part.size)
    samples: list[float] = []
    spent = np.zeros(1)
    # The first makes plans and connections, too.
    while len(samples) <= FEWEST or spent[0] < SERIES_S:
        began_s = time.monotonic()
        pair.all_gather(part, whole, algorithm="ring")
        finish(pair)
        samples.append(time.monotonic() - began_s)
        # Both go on, or none.
        spent[0] = sum(samples[1:])
        pair.all_reduce(spent, spent, op="max", algorithm="recursive_doubling")
    return float(np.median(samples[1:]))


def slowdowns(times_s: NDArray[np.float64]) -> tuple[float, ...]:
    """What hosts took in multiples of what the middle one did, at least 1; empty where none is slow."""
    middle_s = float(np.median(times_s))
    if not middle_s > 0 or not np.isfinite(times_s).all():
        return ()
    found = np.where(times_s >= LEAST_SLOWDOWN * middle_s, times_s / middle_s, 1.0)
    return tuple(found.tolist()) if found.max() > 1 else ()


def faster(model: CostModel, times: float) -> CostModel:
    """`model` of a link that moves bytes so many times as fast."""
    pieces = tuple(piece._replace(beta_s_per_byte=piece.beta_s_per_byte / times) for piece in model.pieces)
    return CostModel(
        model.alpha_s, model.beta_s_per_byte / times, model.gamma_s_per_byte, pieces, model.serial_messages
    )


def of_links(
    slowdown: Sequence[float], nodes: Sequence[Sequence[int]], links: Sequence[Sequence[int]]
) -> tuple[float, ...]:
    """The slowdown of each of `links`, the ranks that share a NIC, from those of the `nodes`; empty where none is."""
    node_of = {rank: node for node, ranks in enumerate(nodes) for rank in ranks}
    return tuple(slowdown[node_of[ranks[0]]] for ranks in links) if slowdown else ()
