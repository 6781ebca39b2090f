"""One rank of `./run evaluate torch-pipelining`: the same blocks and plans, by torch and by lanterne in turn.

Run as a program under torchrun-style variables, with a file of options as JSON: needs PyTorch and lanterne. Rank 0
writes the samples, as JSON, to the file that the options name.
"""

import json
import os
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.pipelining as torch_pipelining
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

import lanterne
from lanterne.pipeline.model.torch_layers import torch_model
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.plan.torch_csv import to_text, to_torch_csv
from lanterne.pipeline.simulate.check_plan import CheckedPlan, check
from lanterne.pipeline.simulate.torch_messages import place_messages
from lanterne.pipeline.train.trainer import Trainer

ROWS, TOKENS, HEADS, RATE = 2, 32, 4, 1e-3
WARMUPS = 3
OWN_CLASSES: dict[str, type[torch_pipelining.Schedule1F1B | torch_pipelining.ScheduleGPipe]] = {
    "1f1b": torch_pipelining.Schedule1F1B,
    "gpipe": torch_pipelining.ScheduleGPipe,
}


def blocks(count: int, width: int) -> list[torch.nn.Module]:
    """The same on every rank."""
    torch.manual_seed(0)
    made = [torch.nn.TransformerEncoderLayer(width, HEADS, 4 * width, 0.0, batch_first=True) for _ in range(count)]
    return list(made)


class TorchPipeline:
    """Iterations by torch: a class of its own, or its runtime with the plan of a file."""

    def __init__(self, options: dict[str, Any], plan: Plan, csv: str | None, form: str = "compute_only") -> None:
        rank, count = dist.get_rank(), options["blocks"]
        own, num_stages = plan.placement.stages_of(rank), plan.placement.num_stages
        every = blocks(num_stages * count, options["width"])
        modules = {stage: torch.nn.Sequential(*every[stage * count : (stage + 1) * count]) for stage in own}
        stages = [
            torch_pipelining.PipelineStage(module, stage, num_stages, torch.device("cpu"))
            for stage, module in modules.items()
        ]
        self.is_first: bool = 0 in own
        self.is_last: bool = num_stages - 1 in own
        self.optimizer: Any = torch.optim.Adam(
            [each for module in modules.values() for each in module.parameters()], RATE
        )
        loss = torch.nn.functional.mse_loss
        if csv is None:
            self.schedule: Any = OWN_CLASSES[plan.scheduler](stages[0], options["microbatches"], loss_fn=loss)
            return
        self.schedule = _PipelineScheduleRuntime(stages, options["microbatches"], loss_fn=loss)
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
            file.write(csv)
            file.flush()
            self.schedule._load_csv(file.name, form)

    def iteration(self, inputs: Any, targets: Any) -> float:
        """One iteration with Adam's step; the loss on the last rank, else 0."""
        given = (torch.from_numpy(inputs).flatten(0, 1),) if self.is_first else ()
        losses: list[Any] = []
        more = {"target": torch.from_numpy(targets).flatten(0, 1), "losses": losses} if self.is_last else {}
        self.schedule.step(*given, **more)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(np.mean([float(each.detach()) for each in losses])) if losses else 0.0


class OurPipeline:
    """Iterations by a Trainer."""

    def __init__(self, options: dict[str, Any], comm: lanterne.Communicator, checked: CheckedPlan) -> None:
        self.data: tuple[Any, Any] = (None, None)
        count, width, num_stages = options["blocks"], options["width"], checked.plan.placement.num_stages
        model = torch_model(
            blocks(num_stages * count, width),
            torch.nn.functional.mse_loss,
            np.zeros((ROWS, TOKENS, width), np.float32),
        )
        starts = [stage * count for stage in range(num_stages + 1)]
        self.trainer: Trainer = Trainer(comm, model, lambda _: self.data, checked, starts=starts)

    def iteration(self, inputs: Any, targets: Any) -> float:
        """As TorchPipeline's."""
        self.data = inputs, targets
        return self.trainer.iteration().loss


def main() -> None:
    """Run all that the options ask for."""
    options = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # The store of MASTER_PORT is lanterne's.
    where = f"tcp://127.0.0.1:{options['port']}"
    with lanterne.init() as comm:
        dist.init_process_group("gloo", init_method=where, rank=rank, world_size=ranks, timeout=timedelta(seconds=60))
        results = [contest(options, comm, document) for document in options["plans"]]
        if rank == 0:
            Path(options["out"]).write_text(json.dumps({"torch": torch.__version__, "results": results}))
        dist.barrier()
        dist.destroy_process_group()


def contest(options: dict[str, Any], comm: lanterne.Communicator, document: dict[str, Any]) -> dict[str, Any]:
    """The samples of one plan: seconds from a common instant to the end of the last rank."""
    plan, problem = Plan.from_dict(document), Problem(comm.world_size, options["microbatches"], 1.0, 1.0, 1.0)
    major, minor = map(int, torch.__version__.split(".")[:2])
    messages = to_text(place_messages(plan, problem, (major, minor)))
    runners: dict[str, Any] = {
        "csv": TorchPipeline(options, plan, to_torch_csv(plan)),
        "comms": TorchPipeline(options, plan, messages, "compute_comms"),
    }
    if plan.scheduler in OWN_CLASSES:
        runners["own"] = TorchPipeline(options, plan, None)
    runners["lanterne"] = OurPipeline(options, comm, check(plan, problem, memory=False))
    samples: dict[str, list[float]] = {name: [] for name in runners}
    losses = dict.fromkeys(runners, 0.0)
    for turn in range(-WARMUPS, options["iterations"]):
        drawn = np.random.default_rng(turn + WARMUPS)
        shape = options["microbatches"], ROWS, TOKENS, options["width"]
        inputs, targets = (drawn.standard_normal(shape, np.float32) for _ in range(2))
        for name in list(runners)[:: 1 if turn % 2 else -1]:
            dist.barrier()
            began_s = time.monotonic()
            losses[name] = runners[name].iteration(inputs, targets)
            took: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(took, (began_s, time.monotonic(), losses[name]))
            if turn >= 0:
                samples[name].append(max(end for _, end, _ in took) - min(begin for begin, _, _ in took))
            # Of torch's ranks all but the last have 0; unlike max(), NumPy keeps a nan.
            losses[name] = float(np.max([loss for _, _, loss in took]))
    runners["lanterne"].trainer.close()
    return {"scheduler": plan.scheduler, "samples_s": samples, "losses": losses}


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
