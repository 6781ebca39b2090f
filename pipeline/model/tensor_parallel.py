"""Linear layers cut over the ranks of a group: by columns, then by rows, with one sum in F and one in B for each pair.

Between the two each rank has its own part of the numbers, say some heads of attention. Whatever is not cut, layer norms
and the biases behind a sum, is the same on all ranks, bit for bit, since all get the same sums.

Paper: Shoeybi et al. 2019 (Megatron-LM), section 3.
"""

from dataclasses import dataclass

import numpy as np

from lanterne.errors import InputError
from lanterne.pipeline.model.layers import Linear


@dataclass(frozen=True)
class _LinearPart(Linear):
    """This rank's part of `whole`.

    Attributes:
        comm: the Communicator of the group.
        bands: of columns, each cut by itself: 3 for queries, keys and values beside each other.
    """

    whole: Linear = None
    comm: object = None
    bands: int = 1

    @property
    def num_whole(self):
        return self.whole.num_parameters

    def initial(self, random):
        return self.part_of(self.whole.initial(random))

    def _summed(self, array):
        flat = array.reshape(-1)
        self.comm.all_reduce(flat, flat)
        return array


@dataclass(frozen=True)
class ColumnLinear(_LinearPart):
    """x -> this rank's columns of x weight + bias; B sums the parts of dx."""

    def part_of(self, whole):
        parts, rank = self.whole.split(whole), self.comm.rank
        columns = np.arange(self.whole.outputs).reshape(self.bands, self.comm.world_size, -1)[:, rank].reshape(-1)
        return np.concatenate([parts["weight"][:, columns].reshape(-1), parts["bias"][columns]])

    def backward_input(self, parameters, saved, dy, out=None):
        dx, kept = super().backward_input(parameters, saved, dy, out)
        return self._summed(dx), kept


@dataclass(frozen=True)
class RowLinear(_LinearPart):
    """This rank's part of x -> x weight + bias, which F sums."""

    def part_of(self, whole):
        parts, rank = self.whole.split(whole), self.comm.rank
        rows = slice(rank * self.inputs, (rank + 1) * self.inputs)
        return np.concatenate([parts["weight"][rows].reshape(-1), parts["bias"]])

    def forward(self, parameters, x, out=None):
        y, saved = self.product(parameters, x, out)
        self._summed(y)
        y += parameters["bias"]
        return y, saved


def column_linear(whole, comm, bands=1):
    """`whole`, a Linear, cut by columns over `comm`; itself if that is None.

    Raises:
        InputError: its columns cannot be cut so.
    """
    if comm is None:
        return whole
    _check("outputs", whole.outputs, bands * comm.world_size)
    return ColumnLinear(whole.inputs, whole.outputs // comm.world_size, whole.scale, whole, comm, bands)


def row_linear(whole, comm):
    """As column_linear, cut by rows."""
    if comm is None:
        return whole
    _check("inputs", whole.inputs, comm.world_size)
    return RowLinear(whole.inputs // comm.world_size, whole.outputs, whole.scale, whole, comm)


def _check(what, got, parts):
    if got % parts:
        raise InputError(f"tensor parallelism: got a linear layer of {got} {what}, expected a multiple of {parts}")
