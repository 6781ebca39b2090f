"""One rank of `./run evaluate ddp`: a model that DDP trains over gloo and over lanterne in turn, in one process.

Run as a program under torchrun-style variables, with the options as JSON: needs PyTorch and lanterne. Rank 0 writes the
samples, as JSON, to the file that the options name. The model is torch.nn's TransformerEncoder, which knows neither.
"""

import importlib
import json
import os
import sys
import time
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

BACKENDS = ("gloo", "lanterne")
WIDTH, TOKENS, BATCH = 256, 16, 2
# From the agreement on an instant until then: every rank has read it.
MARGIN_S = 0.05
WARMUPS = 4


def make_model(layers: int) -> torch.nn.Module:
    """The same on every rank."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


class DdpContest:
    """The models of one bucket cap, of both backends, and what their iterations took."""

    def __init__(self, groups: dict[str, Any], layers: int, cap_mb: float) -> None:
        self._rank: int = dist.get_rank()
        self._groups = groups
        self._ddp = {
            name: DistributedDataParallel(make_model(layers), process_group=group, bucket_cap_mb=cap_mb)
            for name, group in groups.items()
        }
        self._optimizers = {name: torch.optim.SGD(ddp.parameters(), 0.01) for name, ddp in self._ddp.items()}
        self._x = torch.randn(BATCH, TOKENS, WIDTH, generator=torch.Generator().manual_seed(self._rank))
        self.nbytes: int = sum(each.numel() * each.element_size() for each in self._ddp[BACKENDS[0]].parameters())

    def iterate(self, name: str, late_s: float, *, alone: bool = False) -> dict[str, float]:
        """Run one iteration, which this rank begins `late_s` after the common instant; `alone`: nothing is exchanged.

        Returns seconds: `backward`, of this rank; `end`, from the common instant.
        """
        ddp, optimizer = self._ddp[name], self._optimizers[name]
        at_s = self._instant() + late_s
        time.sleep(max(0.0, at_s - time.monotonic()))
        with ddp.no_sync() if alone else nullcontext():
            loss = ddp(self._x).square().mean()
            begin_s = time.monotonic()
            loss.backward()
        end_s = time.monotonic()
        if alone:
            optimizer.zero_grad()
        else:
            optimizer.step()
            optimizer.zero_grad()
        return {"backward": end_s - begin_s, "end": end_s - (at_s - late_s)}

    def _instant(self) -> float:
        """An instant of CLOCK_MONOTONIC, which all ranks share, that is the same on all, and near."""
        dist.barrier(self._groups["gloo"])
        told = torch.tensor([time.monotonic() + MARGIN_S], dtype=torch.float64)
        dist.broadcast(told, 0, self._groups["gloo"])
        return float(told)

    @torch.no_grad()
    def differ(self) -> float:
        """By how much the parameters of the two backends differ at most, relative to their size."""
        pairs = zip(*(self._ddp[name].parameters() for name in BACKENDS), strict=True)
        differences = [(one - other).abs().max() / (other.abs().max() + 1e-30) for one, other in pairs]
        # Unlike Python's maximum, that of a tensor is nan where one of them is.
        return float(torch.stack(differences).max())


def load(backend: str) -> None:
    """Have torch know `backend`, like a user's program: no other part of lanterne needs its own."""
    if backend == "lanterne":
        importlib.import_module("lanterne.torch")


def memory_of_job(backend: str, layers: int, cap_mb: float) -> list[int]:
    """By rank, bytes that a job of `backend` takes after some iterations: the rank's process and its children's.

    Memory that processes share counts in parts: Linux' PSS.
    """
    load(backend)
    dist.init_process_group(backend, timeout=timedelta(seconds=60))
    ddp = DistributedDataParallel(make_model(layers), bucket_cap_mb=cap_mb)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.01)
    for _ in range(WARMUPS):
        ddp(torch.ones(BATCH, TOKENS, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    mine = sum(pss_nbytes(pid) for pid in (os.getpid(), *children()))
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    dist.destroy_process_group()
    return found


def time_of_init(backend: str) -> list[float]:
    """By rank, seconds that `init_process_group` takes where no earlier job has measured the links."""
    os.environ["LANTERNE_CACHE"] = "off"
    load(backend)
    start_s = time.monotonic()
    dist.init_process_group(backend, timeout=timedelta(seconds=60))
    took_s = time.monotonic() - start_s
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, took_s)
    dist.destroy_process_group()
    return found


def pss_nbytes(pid: int) -> int:
    """Bytes of process `pid`, those that it shares with others in parts."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def children() -> list[int]:
    """The children of this process."""
    tasks = Path("/proc/self/task").iterdir()
    return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]


def main() -> None:
    """Run all that the options ask for."""
    options = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    if options["memory_of"] or options["init_of"]:
        found: list[Any]
        if options["memory_of"]:
            found = memory_of_job(options["memory_of"], options["layers"], options["caps_mb"][0])
        else:
            found = time_of_init(options["init_of"])
        if os.environ["RANK"] == "0":
            Path(options["out"]).write_text(json.dumps(found))
        # Of torch's own jobs over gloo (2.13) one in ten aborts while its process ends, when all is known.
        os._exit(0)
    load("lanterne")
    start_s = time.monotonic()
    dist.init_process_group("lanterne", timeout=timedelta(seconds=60))
    init_s = time.monotonic() - start_s
    groups = {"lanterne": dist.group.WORLD, "gloo": dist.new_group(backend="gloo", timeout=timedelta(seconds=60))}
    results = []
    for cap_mb in options["caps_mb"]:
        contest = DdpContest(groups, options["layers"], cap_mb)
        alone = [contest.iterate("gloo", 0.0, alone=True)["backward"] for _ in range(3)]
        for late in options["late"]:
            late_s = late * contest.nbytes / options["rate_bytes_per_s"]
            last = dist.get_world_size() - 1
            own_s = late_s * (dist.get_rank() / last if options["spread"] else dist.get_rank() == last)
            samples: dict[str, list[list[dict[str, float]]]] = {name: [] for name in BACKENDS}
            for turn in range(-WARMUPS, options["iterations"]):
                for name in BACKENDS[:: 1 if turn % 2 else -1]:
                    mine = contest.iterate(name, own_s)
                    everyone: list[Any] = [None] * dist.get_world_size()
                    dist.all_gather_object(everyone, mine, groups["gloo"])
                    if turn >= 0:
                        samples[name].append(everyone)
            results.append(
                {
                    "cap_mb": cap_mb,
                    "nbytes": contest.nbytes,
                    "late": late,
                    "late_s": late_s,
                    "alone_s": sorted(alone)[1],
                    "difference": contest.differ(),
                    "samples": samples,
                }
            )
    if dist.get_rank() == 0:
        with open(options["out"], "w") as file:
            json.dump({"init_s": init_s, "torch": torch.__version__, "results": results}, file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
