"""How long the layers of a model take here: what a fair cut into stages, and a plan, go by."""

import time
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import DTypeLike

from lanterne.pipeline.model.stage_layers import LayerStage, StageModel
from lanterne.pipeline.plan.costs import Floats


def layer_times_s(model: StageModel, dtype: DTypeLike = np.float32, repeats: int = 3) -> Floats:
    """(layers, 3): the shortest F, B and W of each layer out of `repeats`, seconds; the loss is in the last.

    Cost: `repeats` microbatches of the whole model, one layer in memory at a time.
    """
    return np.array([_times_s(model, index, dtype, repeats) for index in range(len(model.layers))])


def _times_s(model: StageModel, index: int, dtype: DTypeLike, repeats: int) -> Floats:
    stage = LayerStage(model, index, index + 1, None, dtype)
    last = index == len(model.layers) - 1
    # Any tokens, or any numbers, take as long as others.
    inputs = np.ones((1, *model.shapes[index]), dtype if index else _input_dtype(model, dtype))
    targets = np.ones((1, *_target_shape(model)), _input_dtype(model, dtype)) if last else None
    dy = None if last else np.ones(model.shapes[index + 1], stage.dtype)
    found = np.empty((repeats, 3))
    for repeat in found:
        stage.begin(1, inputs, targets)
        given = inputs[0] if index else None
        works: tuple[Callable[[], object], ...] = (
            partial(stage.forward, 0, given),
            partial(stage.backward_input, 0, dy),
            partial(stage.backward_weight, 0),
        )
        for kind, work in enumerate(works):
            start_s = time.perf_counter()
            work()
            repeat[kind] = time.perf_counter() - start_s
    return found.min(axis=0)


def _input_dtype(model: StageModel, dtype: DTypeLike) -> DTypeLike:
    return dtype if model.check_inputs is None else np.int64


def _target_shape(model: StageModel) -> tuple[int, ...]:
    return model.shapes[-1] if model.check_targets is None else model.shapes[0]
