"""A stage for `evaluate delegate`: it copies what it receives into what it sends, and knows what it should receive."""

from itertools import count
from typing import Any

import numpy as np

from lanterne.kernels.cpu.delay import delay
from lanterne.pipeline.execute.stage import Message, Samples, Stage, StageArray

NUMBERS = count()


class CopyStage(Stage):
    """The stage of `rank`, 0 or 1; each action takes `work_s` besides copying. `wrong` counts messages."""

    dtype: np.dtype[Any] = np.dtype(np.uint8)

    def __init__(self, rank: int, nbytes: int, work_s: float) -> None:
        self.input_shape: tuple[int, ...] | None = (nbytes,) if rank else None
        self.output_shape: tuple[int, ...] | None = None if rank else (nbytes,)
        self.wrong: int = 0
        self._is_last = bool(rank)
        self._work_s = work_s
        # Other bytes than those of the iteration before, which a buffer may still hold.
        self._source = np.arange(nbytes, dtype=np.uint32).astype(np.uint8) + np.uint8(next(NUMBERS) % 256)
        self._held: dict[int, StageArray] = {}

    def begin(self, microbatches: int, inputs: Samples = None, targets: Samples = None) -> None:
        self._held = {}

    def forward(
        self, microbatch: int, x: Message = None, out: Message = None, part: int = 1, parts: int = 1
    ) -> Message:
        delay(self._work_s)
        if self._is_last:
            assert x is not None
            self._held[microbatch] = x
            return None
        np.add(self._source, np.uint8(microbatch), out=out)
        return out

    def backward_input(
        self, microbatch: int, dy: Message = None, out: Message = None, part: int = 1, parts: int = 1
    ) -> Message:
        delay(self._work_s)
        if self._is_last:
            assert out is not None
            np.copyto(out, self._held.pop(microbatch))
            return out
        # The activation has come back as the gradient: every byte of it is checked.
        assert dy is not None
        self.wrong += int(not np.array_equal(dy, self._source + np.uint8(microbatch)))
        return None

    def backward_weight(self, microbatch: int, part: int = 1, parts: int = 1) -> None:
        delay(self._work_s)

    def step(self) -> None:
        """Nothing to update."""
