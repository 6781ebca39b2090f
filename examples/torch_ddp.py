"""PyTorch's DDP over lanterne, beside gloo, while the last of four ranks comes late to every step.

`python examples/torch_ddp.py` starts four ranks here; under torchrun each process is one.
"""

import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.nn.parallel import DistributedDataParallel

import lanterne.torch

STEPS, LATE_S = 4, 0.05


def train(group: dist.ProcessGroup | None) -> list[float]:
    """The losses of this rank."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(128, 512), torch.nn.ReLU(), torch.nn.Linear(512, 128))
    ddp = DistributedDataParallel(model, process_group=group)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
    torch.manual_seed(dist.get_rank())
    losses = []
    for _ in range(STEPS):
        if dist.get_rank() == dist.get_world_size() - 1:
            time.sleep(LATE_S)
        optimizer.zero_grad()
        loss = ddp(torch.randn(32, 128)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


def main() -> None:
    dist.init_process_group("lanterne")
    gloo = dist.new_group(backend="gloo")
    ours, theirs = train(None), train(gloo)
    assert all(abs(one - other) < 1e-5 for one, other in zip(ours, theirs, strict=True)), (ours, theirs)
    if dist.get_rank() == 0:
        print(f"{STEPS} losses over lanterne are those over gloo: {ours[0]:.4f} to {ours[-1]:.4f}")
        print(lanterne.torch.report())
    dist.destroy_process_group()


def start(rank: int, world_size: int, port: int) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    main()


if __name__ == "__main__":
    if "RANK" in os.environ:
        main()
    else:
        torch.multiprocessing.spawn(start, (4, 29517), nprocs=4)
