"""What a pipeline's executor asks of a stage: the work of F, B and W of each microbatch, apart from each other.

B computes only the gradient of the stage's input, which the stage before waits for; W computes the gradients of the
weights later, in any order of microbatches. Arrays go from stage to stage without a copy: a stage writes what it sends
into a buffer that it is lent, and reads what it was sent where it was received.
"""

from abc import ABC, abstractmethod


class Stage(ABC):
    """One stage of a pipeline; subclasses say what it computes.

    Buffers: `x` and `dy` stay as they are until W of their microbatch has ended, for W may read them; `out` is the
    caller's again once the call has returned, so a stage keeps nothing in it.
    Parts: an action may come in `parts` equal pieces, `part` counting from 1. The first is given `x` or `dy`, and may
    be given them again later; the last is given `out` and returns the result.

    Attributes:
        input_shape, output_shape: shapes of the activations that it receives and sends; None where a route begins and
            ends. The gradients of an activation have its shape.
        dtype: NumPy dtype of both.
    """

    input_shape: tuple | None = None
    output_shape: tuple | None = None
    dtype = None

    @abstractmethod
    def begin(self, microbatches, inputs=None, targets=None):
        """Begin an iteration of `microbatches` microbatches.

        Args:
            inputs, targets: what the model is trained on, indexed by microbatch; a stage in which a route begins reads
                inputs, one in which it ends targets.
        """

    @abstractmethod
    def forward(self, microbatch, x=None, out=None, part=1, parts=1):
        """F: the activation that the next stage receives, in `out` if that is given; None where a route ends."""

    @abstractmethod
    def backward_input(self, microbatch, dy=None, out=None, part=1, parts=1):
        """B: the gradient of the loss by `x`, in `out` if that is given; None where a route begins."""

    @abstractmethod
    def backward_weight(self, microbatch, part=1, parts=1):
        """W: add the microbatch's gradients of the weights; what was kept for it is let go."""

    @abstractmethod
    def step(self):
        """End an iteration: update the weights by the gradients summed over the microbatches."""

    def waited(self):
        """Told by the executor when the rank had nothing to do before the next action."""

    @property
    def losses(self):
        """Microbatch -> loss, a float, of this iteration; empty but where a route ends."""
        return {}

    @property
    def nbytes_held(self):
        """Bytes of the arrays held for B and W, those of other owners included."""
        return 0
