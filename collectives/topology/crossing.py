"""Which links of a class messages cross, and what those cost: all that is asked of a topology to share its links."""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lanterne.collectives.schedule.cost import CostModel
from lanterne.collectives.schedule.ir import Ints


class Crossing(NamedTuple):
    """Which transfers cross a class: `mask` (transfers,); of those, the link that each `leaves` and `enters`."""

    mask: NDArray[np.bool_]
    leaves: Ints
    enters: Ints
    num_links: int
    slowdown: NDArray[np.float64]


class SharedLinks(Protocol):
    """Links by class, which messages share."""

    @property
    def gamma_s_per_byte(self) -> float:
        """Time to add one received byte, s per byte."""
        ...

    def crossed(self, src: Ints, dst: Ints) -> list[tuple[CostModel, Crossing]]:
        """For each class its model, and the Crossing of the messages from `src` to `dst` (int arrays)."""
        ...
