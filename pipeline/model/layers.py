"""The layers of the given models: linear, GELU, layer norm, attention and embedding."""

from dataclasses import dataclass
from math import pi, sqrt
from typing import TypeAlias

import numpy as np

from lanterne.errors import InputError
from lanterne.kernels.arrays import array_module
from lanterne.pipeline.model.layer import Array, Floats, Layer, Out

Parameters: TypeAlias = dict[str, Array]
Pair: TypeAlias = tuple[Array, Array]


@dataclass(frozen=True)
class Linear(Layer):
    """y = x weight + bias over the last axis; weights begin normal with deviation `scale`, 1 / sqrt(inputs) if None."""

    inputs: int
    outputs: int
    scale: float | None = None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"weight": (self.inputs, self.outputs), "bias": (self.outputs,)}

    def initial_value(self, name: str, random: np.random.Generator) -> float | Floats:
        if name == "bias":
            return 0.0
        deviation = self.inputs**-0.5 if self.scale is None else self.scale
        return random.normal(0.0, deviation, self.shapes[name])

    def forward(self, parameters: Parameters, x: Array, out: Out = None) -> tuple[Array, Array]:
        y, saved = self.product(parameters, x, out)
        y += parameters["bias"]
        return y, saved

    def product(self, parameters: Parameters, x: Array, out: Out = None) -> tuple[Array, Array]:
        """As `forward`, without the bias."""
        return _matmul(x, parameters["weight"], out), x

    def backward_input(self, parameters: Parameters, saved: Array, dy: Array, out: Out = None) -> tuple[Array, Pair]:
        return _matmul(dy, parameters["weight"].T, out), (saved, dy)

    def backward_weight(self, kept: Pair, gradients: Parameters) -> None:
        x, dy = (array.reshape(-1, array.shape[-1]) for array in kept)
        gradients["weight"] += x.T @ dy
        gradients["bias"] += dy.sum(axis=0)


def _matmul(x: Array, matrix: Array, out: Out) -> Array:
    """x matrix over the last axis of x, as one product of two matrices."""
    xp, shape = array_module(x), (*x.shape[:-1], matrix.shape[1])
    y: Array = xp.empty(shape, x.dtype) if out is None else out
    xp.matmul(x.reshape(-1, x.shape[-1]), matrix, out=y.reshape(-1, shape[-1]))
    return y


@dataclass(frozen=True)
class Gelu(Layer):
    """y = x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2. Paper: Hendrycks and Gimpel 2016, section 2."""

    def forward(self, parameters: Parameters, x: Array, out: Out = None) -> tuple[Array, Pair]:
        xp = array_module(x)
        tanh = xp.tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x))
        return xp.multiply(0.5 * x, 1 + tanh, out=out), (x, tanh)

    def backward_input(self, parameters: Parameters, saved: Pair, dy: Array, out: Out = None) -> tuple[Array, None]:
        x, tanh = saved
        inner = sqrt(2 / pi) * (1 + 3 * 0.044715 * x * x)
        slope = 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * inner
        return array_module(x).multiply(dy, slope, out=out), None


@dataclass(frozen=True)
class LayerNorm(Layer):
    """Mean 0 and variance 1 over the last axis of `width` numbers, then times gain plus bias."""

    width: int
    epsilon: float = 1e-5

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"gain": (self.width,), "bias": (self.width,)}

    def initial_value(self, name: str, random: np.random.Generator) -> float | Floats:
        return 1.0 if name == "gain" else 0.0

    def forward(self, parameters: Parameters, x: Array, out: Out = None) -> tuple[Array, Pair]:
        xp = array_module(x)
        centered = x - x.mean(axis=-1, keepdims=True)
        inverse = 1 / xp.sqrt((centered * centered).mean(axis=-1, keepdims=True) + self.epsilon)
        centered *= inverse
        y = xp.multiply(centered, parameters["gain"], out=out)
        y += parameters["bias"]
        return y, (centered, inverse)

    def backward_input(self, parameters: Parameters, saved: Pair, dy: Array, out: Out = None) -> tuple[Array, Pair]:
        normal, inverse = saved
        slope = dy * parameters["gain"]
        along = (slope * normal).mean(axis=-1, keepdims=True)
        slope -= slope.mean(axis=-1, keepdims=True)
        slope -= along * normal
        return array_module(dy).multiply(slope, inverse, out=out), (normal, dy)

    def backward_weight(self, kept: Pair, gradients: Parameters) -> None:
        normal, dy = (array.reshape(-1, self.width) for array in kept)
        gradients["gain"] += (normal * dy).sum(axis=0)
        gradients["bias"] += dy.sum(axis=0)


@dataclass(frozen=True)
class Attention(Layer):
    """Causal attention of `heads` heads: (rows, length, 3 width) queries, keys, values -> (rows, length, width).

    Paper: Vaswani et al. 2017, section 3.2.
    """

    heads: int

    def _heads(self, x: Array) -> Array:
        """Queries, keys and values as a view: (3, rows, heads, length, width / heads)."""
        rows, length, triple = x.shape
        return x.reshape(rows, length, 3, self.heads, triple // 3 // self.heads).transpose(2, 0, 3, 1, 4)

    def forward(self, parameters: Parameters, x: Array, out: Out = None) -> tuple[Array, Pair]:
        xp = array_module(x)
        query, key, value = self._heads(x)
        rows, heads, length, size = query.shape
        weights = query @ key.swapaxes(-1, -2)
        weights *= size**-0.5
        weights += xp.triu(xp.full((length, length), -xp.inf, x.dtype), 1)
        weights -= weights.max(axis=-1, keepdims=True)
        xp.exp(weights, out=weights)
        weights /= weights.sum(axis=-1, keepdims=True)
        y: Array = xp.empty((rows, length, heads * size), x.dtype) if out is None else out
        y.reshape(rows, length, heads, size)[...] = (weights @ value).swapaxes(1, 2)
        return y, (x, weights)

    def backward_input(self, parameters: Parameters, saved: Pair, dy: Array, out: Out = None) -> tuple[Array, None]:
        x, weights = saved
        query, key, value = self._heads(x)
        rows, heads, length, size = query.shape
        dy = dy.reshape(rows, length, heads, size).swapaxes(1, 2)
        dx: Array = array_module(x).empty(x.shape, x.dtype) if out is None else out
        dquery, dkey, dvalue = self._heads(dx)
        dvalue[...] = weights.swapaxes(-1, -2) @ dy
        slope = dy @ value.swapaxes(-1, -2)
        slope -= (slope * weights).sum(axis=-1, keepdims=True)
        slope *= weights
        slope *= size**-0.5
        dquery[...] = slope @ key
        dkey[...] = slope.swapaxes(-1, -2) @ query
        return dx, None


@dataclass(frozen=True)
class Embedding(Layer):
    """(rows, length) token numbers -> (rows, length, width): the token's vector plus its position's.

    Its W costs a product with a (tokens, vocabulary) matrix: the sums are then in one order on every device, where
    scattered additions on a GPU are not.
    """

    vocabulary: int
    length: int
    width: int

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"token": (self.vocabulary, self.width), "position": (self.length, self.width)}

    def initial_value(self, name: str, random: np.random.Generator) -> float | Floats:
        return random.normal(0.0, 0.02, self.shapes[name])

    def forward(self, parameters: Parameters, x: Array, out: Out = None) -> tuple[Array, Array]:
        positions = parameters["position"][: x.shape[1]]
        return array_module(x).add(parameters["token"][x], positions, out=out), x

    def backward_input(self, parameters: Parameters, saved: Array, dy: Array, out: Out = None) -> tuple[None, Pair]:
        """Token numbers have no gradient: dx is None."""
        return None, (saved, dy)

    def backward_weight(self, kept: Pair, gradients: Parameters) -> None:
        tokens, dy = kept
        xp = array_module(dy)
        chosen = (tokens.reshape(-1, 1) == xp.arange(self.vocabulary)).astype(dy.dtype)
        gradients["token"] += chosen.T @ dy.reshape(-1, self.width)
        gradients["position"][: dy.shape[1]] += dy.sum(axis=0)


def check_tokens(what: str, tokens: Array, vocabulary: int) -> None:
    """Raise InputError unless `tokens` is an array of integers from 0 to vocabulary - 1."""
    if not np.issubdtype(tokens.dtype, np.integer):
        raise InputError(f"{what}: got {tokens.dtype}, expected token numbers")
    if tokens.size and not (int(tokens.min()) >= 0 and int(tokens.max()) < vocabulary):
        raise InputError(
            f"{what}: got tokens from {int(tokens.min())} to {int(tokens.max())}, expected 0 to {vocabulary - 1}"
        )
