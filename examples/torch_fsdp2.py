"""PyTorch's FSDP2 on a mesh of two levels over lanterne, beside gloo: two replicas, each sharded over two ranks.

`python examples/torch_fsdp2.py` starts four ranks here; under torchrun each process is one. The last one comes late.
"""

import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import lanterne.torch  # noqa: F401 - the backend

STEPS, LATE_S = 3, 0.05


def train() -> list[float]:
    """The losses of this rank."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    torch.manual_seed(dist.get_rank())
    losses = []
    for _ in range(STEPS):
        if dist.get_rank() == dist.get_world_size() - 1:
            time.sleep(LATE_S)
        optimizer.zero_grad()
        loss = model(torch.randn(16, 64)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


def main() -> None:
    found = {}
    for backend in ("lanterne", "gloo"):
        dist.init_process_group(backend)
        rank, found[backend] = dist.get_rank(), train()
        dist.destroy_process_group()
        if "TORCHELASTIC_RUN_ID" not in os.environ:  # whose store all groups share
            os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
    pairs = zip(*found.values(), strict=True)
    assert all(abs(one - other) < 1e-5 for one, other in pairs), found
    if rank == 0:
        print(f"{STEPS} losses over lanterne are those over gloo: {found['lanterne']}")


def start(rank: int, world_size: int, port: int) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    main()


if __name__ == "__main__":
    if "RANK" in os.environ:
        main()
    else:
        torch.multiprocessing.spawn(start, (4, 29518), nprocs=4)
