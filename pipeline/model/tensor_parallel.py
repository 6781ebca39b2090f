"""Linear layers cut over the ranks of a group: by columns, then by rows, with one sum in F and one in B for each pair.

Between the two each rank has its own part of the numbers, say some heads of attention. Whatever is not cut, layer norms
and the biases behind a sum, is the same on all ranks, bit for bit, since all get the same sums.

Paper: Shoeybi et al. 2019 (Megatron-LM), section 3.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from lanterne.errors import InputError
from lanterne.kernels.arrays import HostArray
from lanterne.pipeline.model.layer import Array, Floats, Out
from lanterne.pipeline.model.layers import Linear, Pair, Parameters

if TYPE_CHECKING:
    from lanterne.collectives.communicator import Communicator


@dataclass(frozen=True)
class _LinearPart(Linear):
    """This rank's part of `whole`.

    Attributes:
        comm: of the group.
        bands: of columns, each cut by itself: 3 for queries, keys and values beside each other.
    """

    whole: Linear = field(kw_only=True)
    comm: "Communicator" = field(kw_only=True)
    bands: int = field(default=1, kw_only=True)

    @cached_property
    def num_whole(self) -> int:
        return self.whole.num_parameters

    def initial(self, random: np.random.Generator) -> Floats:
        return self.part_of(self.whole.initial(random))

    def _summed(self, array: Array) -> Array:
        flat = array.reshape(-1)
        self.comm.all_reduce(flat, flat)
        return array


@dataclass(frozen=True)
class ColumnLinear(_LinearPart):
    """x -> this rank's columns of x weight + bias; B sums the parts of dx."""

    def part_of(self, whole: HostArray) -> HostArray:
        parts, rank = self.whole.split(whole), self.comm.rank
        columns = np.arange(self.whole.outputs).reshape(self.bands, self.comm.world_size, -1)[:, rank].reshape(-1)
        return np.concatenate([parts["weight"][:, columns].reshape(-1), parts["bias"][columns]])

    def backward_input(self, parameters: Parameters, saved: Array, dy: Array, out: Out = None) -> tuple[Array, Pair]:
        dx, kept = super().backward_input(parameters, saved, dy, out)
        return self._summed(dx), kept


@dataclass(frozen=True)
class RowLinear(_LinearPart):
    """This rank's part of x -> x weight + bias, which F sums."""

    def part_of(self, whole: HostArray) -> HostArray:
        parts, rank = self.whole.split(whole), self.comm.rank
        rows = slice(rank * self.inputs, (rank + 1) * self.inputs)
        return np.concatenate([parts["weight"][rows].reshape(-1), parts["bias"]])

    def forward(self, parameters: Parameters, x: Array, out: Out = None) -> tuple[Array, Array]:
        y, saved = self.product(parameters, x, out)
        self._summed(y)
        y += parameters["bias"]
        return y, saved


def column_linear(whole: Linear, comm: "Communicator | None", bands: int = 1) -> Linear:
    """`whole` cut by columns over `comm`; itself if that is None.

    Raises:
        InputError: its columns cannot be cut so.
    """
    if comm is None:
        return whole
    _check("outputs", whole.outputs, bands * comm.world_size)
    outputs = whole.outputs // comm.world_size
    return ColumnLinear(whole.inputs, outputs, whole.scale, whole=whole, comm=comm, bands=bands)


def row_linear(whole: Linear, comm: "Communicator | None") -> Linear:
    """`whole` cut by rows over `comm`; itself if that is None.

    Raises:
        InputError: its rows cannot be cut so.
    """
    if comm is None:
        return whole
    _check("inputs", whole.inputs, comm.world_size)
    return RowLinear(whole.inputs // comm.world_size, whole.outputs, whole.scale, whole=whole, comm=comm)


def _check(what: str, got: int, parts: int) -> None:
    if got % parts:
        raise InputError(f"tensor parallelism: got a linear layer of {got} {what}, expected a multiple of {parts}")
