"""Which links of a class messages cross, and what those cost: all that is asked of a topology to share its links."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lanterne.collectives.schedule.cost import CostModel
from lanterne.collectives.schedule.ir import Ints

Mask: TypeAlias = NDArray[np.bool_]


class Crossing(NamedTuple):
    """Which transfers cross a class: `mask` (transfers,); of those, the link that each `leaves` and `enters`."""

    mask: Mask
    leaves: Ints
    enters: Ints
    num_links: int
    slowdown: NDArray[np.float64]


# Of messages from some ranks to others (int arrays), for each class of links its model and the Crossing.
CrossedLinks: TypeAlias = Callable[[Ints, Ints], list[tuple[CostModel, Crossing]]]
