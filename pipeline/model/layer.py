"""What a layer is, and how layers are put together: one after the other, or around a shortcut.

A layer is a frozen value without arrays: its parameters lie in one flat vector that its stage owns, so that an
optimizer, a reduction over data-parallel copies and a checkpoint see one array. All of it is plain array code that
runs on NumPy and CuPy arrays alike. No layer changes its arguments, or saves what it returns: that may be a buffer of
others.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lanterne.kernels.arrays import HostArray

# NumPy's, or CuPy's, which are used alike.
Array: TypeAlias = HostArray
# Where to put a result, C-contiguous; None for anywhere.
Out: TypeAlias = Array | None
Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
# A layer's parameters or their gradients: arrays by name; of a chain, a list of its layers'.
Views: TypeAlias = Any
# What a layer keeps from F for B, and from B for W: arrays, tuples and lists of them, None.
Kept: TypeAlias = Any


class Layer(ABC):
    """A differentiable function of one array with parameters."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Name -> shape of each parameter."""
        return {}

    @cached_property
    def num_parameters(self) -> int:
        """Numbers in all parameters together."""
        return sum(map(prod, self.shapes.values()))

    @cached_property
    def num_whole(self) -> int:
        """Numbers in all parameters of the layer that this one is a tensor-parallel part of; itself if it is none."""
        return self.num_parameters

    def part_of(self, whole: HostArray) -> HostArray:
        """(num_parameters,): this layer's own out of `whole`, (num_whole,), the layer's that it is a part of."""
        return whole

    def split(self, flat: Array) -> Views:
        """The parameters (or their gradients) in `flat`, (num_parameters,), as views: name -> array."""
        views, start = {}, 0
        for name, shape in self.shapes.items():
            stop = start + prod(shape)
            views[name] = flat[start:stop].reshape(shape)
            start = stop
        return views

    def initial(self, random: np.random.Generator) -> Floats:
        """(num_parameters,) float64: the parameters to begin with, drawn from `random`."""
        flat = np.zeros(self.num_parameters)
        for name, view in self.split(flat).items():
            view[...] = self.initial_value(name, random)
        return flat

    def initial_value(self, name: str, random: np.random.Generator) -> float | Floats:
        """What parameter `name` begins with: anything that NumPy can broadcast to its shape."""
        raise NotImplementedError(f"{type(self).__name__} has no parameter {name}")

    @abstractmethod
    def forward(self, parameters: Views, x: Array, out: Out = None) -> tuple[Array, Kept]:
        """F: (y, saved); y is in `out` if that is given, a C-contiguous array."""

    @abstractmethod
    def backward_input(self, parameters: Views, saved: Kept, dy: Array, out: Out = None) -> tuple[Any, Kept]:
        """B: (dx, kept): the gradient by x, in `out` if that is given, or None if it has none; and what W needs."""

    def backward_weight(self, kept: Kept, gradients: Views) -> None:  # noqa: B027 (optional: does nothing unless overridden)
        """W: add the gradients by the parameters to `gradients`, arrays by name."""

    def backward(self, parameters: Views, saved: Kept, dy: Array, gradients: Views, out: Out = None) -> Any:
        """BW: dx as B gives it, and what W does; a layer that can do both for less than each says so."""
        dx, kept = self.backward_input(parameters, saved, dy, out)
        self.backward_weight(kept, gradients)
        return dx


@dataclass(frozen=True)
class LayerChain(Layer):
    """The `layers` one after the other."""

    layers: tuple[Layer, ...]

    @cached_property
    def num_parameters(self) -> int:
        return sum(layer.num_parameters for layer in self.layers)

    @cached_property
    def num_whole(self) -> int:
        return sum(layer.num_whole for layer in self.layers)

    def part_of(self, whole: HostArray) -> HostArray:
        ends = np.cumsum([layer.num_whole for layer in self.layers])[:-1]
        return np.concatenate(
            [layer.part_of(own) for layer, own in zip(self.layers, np.split(whole, ends), strict=True)]
        )

    def split(self, flat: Array) -> list[Views]:
        """A list of what each layer makes of its piece."""
        views, start = [], 0
        for layer in self.layers:
            views.append(layer.split(flat[start : start + layer.num_parameters]))
            start += layer.num_parameters
        return views

    def initial(self, random: np.random.Generator) -> Floats:
        return np.concatenate([layer.initial(random) for layer in self.layers])

    def forward(self, parameters: list[Views], x: Array, out: Out = None) -> tuple[Array, list[Kept]]:
        saved: list[Kept] = []
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            x, keep = layer.forward(parameters[index], x, out if index == last else None)
            saved.append(keep)
        return x, saved

    def backward_input(
        self, parameters: list[Views], saved: list[Kept], dy: Array, out: Out = None
    ) -> tuple[Any, list[Kept]]:
        kept: list[Kept] = [None] * len(self.layers)
        for index in reversed(range(len(self.layers))):
            target = None if index else out
            dy, kept[index] = self.layers[index].backward_input(parameters[index], saved[index], dy, target)
        return dy, kept

    def backward_weight(self, kept: list[Kept], gradients: list[Views]) -> None:
        for layer, keep, into in zip(self.layers, kept, gradients, strict=True):
            layer.backward_weight(keep, into)


@dataclass(frozen=True)
class Residual(LayerChain):
    """x plus what the `layers` make of it."""

    def forward(self, parameters: list[Views], x: Array, out: Out = None) -> tuple[Array, list[Kept]]:
        y, saved = super().forward(parameters, x, out)
        y += x
        return y, saved

    def backward_input(
        self, parameters: list[Views], saved: list[Kept], dy: Array, out: Out = None
    ) -> tuple[Any, list[Kept]]:
        dx, kept = super().backward_input(parameters, saved, dy, out)
        dx += dy
        return dx, kept
