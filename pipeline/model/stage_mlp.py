"""A multilayer perceptron to be cut into stages."""

from collections.abc import Iterable
from itertools import pairwise

from lanterne.errors import InputError
from lanterne.pipeline.model.layer import LayerChain
from lanterne.pipeline.model.layers import Gelu, Linear
from lanterne.pipeline.model.losses import SquaredError
from lanterne.pipeline.model.stage_layers import StageModel


def mlp(widths: Iterable[int], rows: int) -> StageModel:
    """The StageModel of linear layers from widths[0] to widths[-1] numbers with a GELU after each but the last.

    A layer of the model is a linear one with its GELU. Inputs and targets of a microbatch are (rows, widths[0]) and
    (rows, widths[-1]); the loss is the mean squared error.

    Raises:
        InputError: fewer than two widths, or one below 1.
    """
    widths = tuple(widths)
    if len(widths) < 2 or min(*widths, rows) < 1:
        raise InputError(f"mlp: got widths {widths}, rows {rows}, expected two widths or more, all at least 1")
    linears = [Linear(before, after) for before, after in pairwise(widths)]
    layers = (*(LayerChain((linear, Gelu())) for linear in linears[:-1]), linears[-1])
    return StageModel(layers, SquaredError(), tuple((rows, width) for width in widths))
