"""Links of a known rate between ranks of one machine, for benchmarks: no root, no network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lanterne.collectives.schedule.cost import CostModel
from lanterne.transport.shaped import Link, ShapedTransport

if TYPE_CHECKING:
    from lanterne.collectives.communicator import Communicator

# Of the links; and what a message takes before its bytes, this library's work on shared cores with it.
LATENCY_S, START_S = 200e-6, 1e-3


@contextmanager
def emulated(
    comm: Communicator, bytes_per_s: float, latency_s: float = LATENCY_S, start_s: float = START_S
) -> Iterator[Communicator]:
    """A Communicator of the same ranks over links of that rate and latency. All ranks call it.

    Args:
        start_s: alpha of the model that `auto` goes by.
    """
    with comm.split(0, comm.rank, ShapedTransport(comm.transport, Link(latency_s, bytes_per_s))) as linked:
        linked.tuning.adopt(CostModel(start_s, 1 / bytes_per_s), "emulated links")
        yield linked
