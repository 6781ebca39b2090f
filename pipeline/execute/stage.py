"""What a pipeline's executor asks of a stage: the work of F, B and W of each microbatch, apart from each other.

B computes only the gradient of the stage's input, which the stage before waits for; W computes the gradients of the
weights later, in any order of microbatches. Arrays go from stage to stage without a copy: a stage writes what it sends
into a buffer that it is lent, and reads what it was sent where it was received.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

# NumPy's, or CuPy's, which have the same operations, where stages compute on a device.
StageArray: TypeAlias = NDArray[Any]
# An activation or its gradient; None where a route begins or ends, and for a part of an action that has none.
Message: TypeAlias = StageArray | None
# Inputs or targets, indexed by microbatch; None for stages that need none.
Batch: TypeAlias = NDArray[Any] | Sequence[Any]
Samples: TypeAlias = Batch | None
Result = TypeVar("Result")


class Stage(ABC):
    """One stage of a pipeline; subclasses say what it computes.

    Buffers: `x` and `dy` stay as they are until W of their microbatch has ended, for W may read them; `out` is the
    caller's again once the call has returned, so a stage keeps nothing in it.
    Parts: an action may come in `parts` equal pieces, `part` counting from 1. The first is given `x` or `dy`, and may
    be given them again later; the last is given `out` and returns the result.

    Attributes:
        input_shape, output_shape: shapes of the activations that it receives and sends; None where a route begins and
            ends. The gradients of an activation have its shape.
        dtype: of both.
    """

    input_shape: tuple[int, ...] | None = None
    output_shape: tuple[int, ...] | None = None
    dtype: np.dtype[Any]

    @abstractmethod
    def begin(self, microbatches: int, inputs: Samples = None, targets: Samples = None) -> None:
        """Begin an iteration of `microbatches` microbatches.

        Args:
            inputs, targets: what the model is trained on, indexed by microbatch; a stage in which a route begins reads
                inputs, one in which it ends targets.
        """

    @abstractmethod
    def forward(
        self, microbatch: int, x: Message = None, out: Message = None, part: int = 1, parts: int = 1
    ) -> Message:
        """F: the activation that the next stage receives, in `out` if that is given; None where a route ends."""

    @abstractmethod
    def backward_input(
        self, microbatch: int, dy: Message = None, out: Message = None, part: int = 1, parts: int = 1
    ) -> Message:
        """B: the gradient of the loss by `x`, in `out` if that is given; None where a route begins."""

    @abstractmethod
    def backward_weight(self, microbatch: int, part: int = 1, parts: int = 1) -> None:
        """W: add the microbatch's gradients of the weights; what was kept for it is let go."""

    def backward(
        self, microbatch: int, dy: Message = None, out: Message = None, part: int = 1, parts: int = 1
    ) -> Message:
        """BW: B, and W at once; a stage that can do both for less than each says so."""
        dx = self.backward_input(microbatch, dy, out, part, parts)
        self.backward_weight(microbatch, part, parts)
        return dx

    @abstractmethod
    def step(self) -> None:
        """End an iteration: update the weights by the gradients summed over the microbatches."""

    def waited(self) -> None:  # noqa: B027 (optional: does nothing unless overridden)
        """The executor calls it when the rank had nothing to do before the next action."""

    @property
    def losses(self) -> dict[int, float]:
        """Microbatch -> loss, a float, of this iteration; empty but where a route ends."""
        return {}

    @property
    def nbytes_held(self) -> int:
        """Bytes of the arrays held for B and W, those of other owners included."""
        return 0


class WrappedStage(Stage):
    """Stage that passes all calls on to the stage `inner`; subclasses say what happens around F, B and W."""

    def __init__(self, inner: Stage) -> None:
        self.inner = inner
        self.input_shape: tuple[int, ...] | None = inner.input_shape
        self.output_shape: tuple[int, ...] | None = inner.output_shape
        self.dtype: np.dtype[Any] = inner.dtype

    @abstractmethod
    def around(self, kind: str, work: Callable[..., Result], microbatch: int, *args: Any) -> Result:
        """Return work(microbatch, *args), an action of `kind` F, B or W."""

    def begin(self, microbatches: int, inputs: Samples = None, targets: Samples = None) -> None:
        self.inner.begin(microbatches, inputs, targets)

    def forward(
        self, microbatch: int, x: Message = None, out: Message = None, part: int = 1, parts: int = 1
    ) -> Message:
        return self.around("F", self.inner.forward, microbatch, x, out, part, parts)

    def backward_input(
        self, microbatch: int, dy: Message = None, out: Message = None, part: int = 1, parts: int = 1
    ) -> Message:
        return self.around("B", self.inner.backward_input, microbatch, dy, out, part, parts)

    def backward_weight(self, microbatch: int, part: int = 1, parts: int = 1) -> None:
        return self.around("W", self.inner.backward_weight, microbatch, part, parts)

    def step(self) -> None:
        self.inner.step()

    def waited(self) -> None:
        self.inner.waited()

    @property
    def losses(self) -> dict[int, float]:
        return self.inner.losses

    @property
    def nbytes_held(self) -> int:
        return self.inner.nbytes_held
