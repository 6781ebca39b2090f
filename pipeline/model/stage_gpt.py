"""A small GPT to be cut into stages."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lanterne.errors import InputError
from lanterne.kernels.arrays import HostArray
from lanterne.pipeline.model.layer import LayerChain, Residual
from lanterne.pipeline.model.layers import Attention, Embedding, Gelu, LayerNorm, Linear, check_tokens
from lanterne.pipeline.model.losses import CrossEntropy
from lanterne.pipeline.model.stage_layers import StageModel
from lanterne.pipeline.model.tensor_parallel import column_linear, row_linear

if TYPE_CHECKING:
    from lanterne.collectives.communicator import Communicator


def gpt(
    vocabulary: int, length: int, width: int, heads: int, blocks: int, rows: int, tensor: "Communicator | None" = None
) -> StageModel:
    """The StageModel of a GPT: an embedding; `blocks` times attention and MLP, each a layer of the model; a head.

    `tensor` is that of the ranks that share each block, heads and MLP cut over them; None for one rank.
    Inputs and targets of a microbatch are (rows, length) token numbers, targets one place ahead; the loss is the mean
    cross-entropy in nats per token.

    Raises:
        InputError: a number below 1, or a width that is no multiple of heads.

    Paper: Radford et al. 2019 (GPT-2), section 2.3: layer norms first, projections that end a shortcut's side made
    smaller by sqrt(2 blocks).
    """
    if min(vocabulary, length, width, heads, blocks, rows) < 1:
        raise InputError("gpt: got a number below 1, expected all of at least 1")
    if width % heads:
        raise InputError(f"gpt: got width {width} with {heads} heads, expected a multiple")
    parts = 1 if tensor is None else tensor.world_size
    if heads % parts:
        raise InputError(f"gpt: got {heads} heads on {parts} tensor-parallel ranks, expected a multiple")
    scale = 0.02
    ends = scale / (2 * blocks) ** 0.5
    attention = (
        LayerNorm(width),
        column_linear(Linear(width, 3 * width, scale), tensor, bands=3),
        Attention(heads // parts),
        row_linear(Linear(width, width, ends), tensor),
    )
    feed_forward = (
        LayerNorm(width),
        column_linear(Linear(width, 4 * width, scale), tensor),
        Gelu(),
        row_linear(Linear(4 * width, width, ends), tensor),
    )
    head = LayerChain((LayerNorm(width), Linear(width, vocabulary, scale)))
    middle = (Residual(attention), Residual(feed_forward)) * blocks
    hidden = (rows, length, width)
    return StageModel(
        (Embedding(vocabulary, length, width), *middle, head),
        CrossEntropy(),
        ((rows, length), *[hidden] * (len(middle) + 1), (rows, length, vocabulary)),
        partial(check_tokens, "inputs", vocabulary=vocabulary),
        partial(check_tokens, "targets", vocabulary=vocabulary),
    )


def windows(
    tokens: HostArray, microbatches: int, rows: int, length: int, seed: int | Sequence[int]
) -> tuple[HostArray, HostArray]:
    """Inputs and targets of an iteration, two (microbatches, rows, length) arrays: random windows of `tokens`, (n,).

    Raises:
        InputError: fewer than length + 1 tokens.
    """
    if len(tokens) <= length:
        raise InputError(f"text: got {len(tokens)} tokens, expected at least {length + 1}, one window and its target")
    begins = np.random.default_rng(seed).integers(0, len(tokens) - length, (microbatches, rows, 1))
    places = begins + np.arange(length)
    return tokens[places], tokens[places + 1]
