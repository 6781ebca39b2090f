"""What a route ends in: the loss of a microbatch and its gradient."""

from dataclasses import dataclass
from typing import Protocol

from lanterne.kernels.arrays import array_module
from lanterne.pipeline.model.layer import Array, Kept


class Loss(Protocol):
    """What a model ends in, such as those below."""

    def forward(self, y: Array, target: Array, /) -> tuple[Array, Kept]: ...
    def backward_input(self, saved: Kept, scale: float) -> Array: ...


@dataclass(frozen=True)
class CrossEntropy:
    """Mean of -log softmax(logits)[target] over all tokens; (rows, length, vocabulary) logits."""

    def forward(self, logits: Array, target: Array) -> tuple[Array, tuple[Array, Array]]:
        """(loss, a 0-d array; saved)."""
        xp = array_module(logits)
        shifted = logits - logits.max(axis=-1, keepdims=True)
        total = xp.exp(shifted).sum(axis=-1, keepdims=True)
        shifted -= xp.log(total)
        chosen = xp.take_along_axis(shifted, target[..., None], axis=-1)
        return -chosen.mean(), (shifted, target)

    def backward_input(self, saved: tuple[Array, Array], scale: float) -> Array:
        """The gradient of `scale` times the loss by the logits."""
        log_probability, target = saved
        xp = array_module(log_probability)
        slope = xp.exp(log_probability)
        slope -= target[..., None] == xp.arange(slope.shape[-1])
        slope *= scale / target.size
        return slope


@dataclass(frozen=True)
class SquaredError:
    """Mean of (y - target)^2 over all numbers."""

    def forward(self, y: Array, target: Array) -> tuple[Array, Array]:
        """(loss, a 0-d array; saved)."""
        difference = y - target
        return (difference * difference).mean(), difference

    def backward_input(self, saved: Array, scale: float) -> Array:
        """The gradient of `scale` times the loss by y."""
        return saved * (2 * scale / saved.size)
