"""A GPT of PyTorch modules trained by a pipeline: `mpiexec -n 4 python examples/train_torch.py`, or alone; or
`lanterne pipeline train -n 4 --model examples.train_torch:gpt --data README.md --data-parallel 2 --zero1`.
"""

from importlib.util import find_spec
from typing import Any

import numpy as np

import lanterne
from lanterne.pipeline.model.stage_layers import StageModel
from lanterne.pipeline.model.torch_layers import torch_model
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.train.trainer import Trainer, plans


def gpt(vocabulary: int, length: int, width: int, heads: int, blocks: int, rows: int) -> StageModel:
    """An embedding with positions, blocks of attention and MLP, and logits."""
    import torch
    from torch import nn

    class Embedding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(length, width)

        def forward(self, tokens: Any) -> Any:
            return self.token(tokens) + self.place.weight

    class Block(nn.TransformerEncoderLayer):
        def forward(self, x: Any) -> Any:
            mask = torch.full((length, length), float("-inf"), dtype=x.dtype, device=x.device).triu(1)
            return super().forward(x, src_mask=mask)

    torch.manual_seed(0)
    body = [Block(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(blocks)]
    head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, vocabulary))
    loss = lambda y, target: nn.functional.cross_entropy(y.flatten(0, 1), target.flatten())  # noqa: E731
    return torch_model([Embedding(), *body, head], loss, np.zeros((rows, length), np.int64))


def batch(iteration: int) -> tuple[Any, Any]:
    """Four microbatches of two rows of counting, from anywhere on: tokens, and those that follow."""
    first = np.random.default_rng(iteration).integers(0, 16, (4, 2, 1))
    rows = (first + np.arange(9)) % 16
    return rows[..., :-1], rows[..., 1:]


def main() -> None:
    """Train a little, and say what it brought."""
    with lanterne.init() as comm:
        problem = Problem(stages=comm.world_size, microbatches=4, forward=1, backward_input=1, backward_weight=1)
        trainer = Trainer(comm, gpt(16, 8, 16, 2, 4, 2), batch, plans(problem, "zb_h1"))
        losses = [trainer.iteration().loss for _ in range(20)]
        assert losses[-1] < losses[0]
        if comm.rank == 0:
            print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")


if __name__ == "__main__":
    if find_spec("torch"):
        main()
    else:
        print("PyTorch is not installed: pip install torch")
