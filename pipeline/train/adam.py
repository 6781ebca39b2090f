"""Adam on flat vectors."""

from typing import Any

import numpy as np

from lanterne.errors import InputError
from lanterne.kernels.arrays import array_module
from lanterne.pipeline.execute.stage import StageArray

# measured: 0.97 of the time of whole vectors of 2 Mi; what is made on the way takes 0.5 MB, not four vectors
CUT = 1 << 15


class Adam:
    """Updates parameters in place; element by element, so that any cut of the vector gives the same bits.

    Attributes: `steps`, how many were made; `mean` and `square`, running averages of the gradient and of its square,
    made at the first step.
    Paper: Kingma and Ba 2015, algorithm 1, in the form at the end of its section 2; weight decay as Loshchilov and
    Hutter 2019, algorithm 2.
    """

    def __init__(
        self,
        learning_rate: float = 1e-3,
        mean_decay: float = 0.9,
        square_decay: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        for name, decay in (("mean_decay", mean_decay), ("square_decay", square_decay)):
            if not 0 <= decay < 1:
                raise InputError(f"Adam: got {name} {decay}, expected 0 or more, below 1")
        if not (learning_rate > 0 and epsilon > 0):
            raise InputError(f"Adam: got learning_rate {learning_rate}, epsilon {epsilon}, expected both above 0")
        self.learning_rate = learning_rate
        self.epsilon = epsilon
        self.weight_decay = weight_decay
        self.mean_decay = mean_decay
        self.square_decay = square_decay
        self.steps: int = 0
        self.mean: StageArray | None = None
        self.square: StageArray | None = None

    def step(self, parameters: StageArray, gradients: StageArray) -> None:
        """One update of `parameters` by `gradients`, two arrays of one shape."""
        xp, count = array_module(parameters), len(parameters)
        mean, square = self.mean, self.square
        if mean is None or square is None:
            mean, square = self.mean, self.square = xp.zeros_like(parameters), xp.zeros_like(parameters)
        self.steps += 1
        # On the host a run at a time, so that what is made on the way takes little memory.
        cut = CUT if xp is np else max(count, 1)
        for start in range(0, count, cut):
            own = slice(start, start + cut)
            self._step(xp, parameters[own], gradients[own], mean[own], square[own])

    def _step(
        self, xp: Any, parameters: StageArray, gradients: StageArray, mean: StageArray, square: StageArray
    ) -> None:
        """The same for a run of all of them."""
        mean += (1 - self.mean_decay) * (gradients - mean)
        square += (1 - self.square_decay) * (gradients * gradients - square)
        correction = (1 - self.square_decay**self.steps) ** 0.5
        rate = self.learning_rate * correction / (1 - self.mean_decay**self.steps)
        parameters *= 1 - self.learning_rate * self.weight_decay
        parameters -= rate * mean / (xp.sqrt(square) + self.epsilon * correction)
