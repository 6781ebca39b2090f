"""One rank of the jobs of test_device.py: `python device_rank.py CHECK...`, on the stand-in device of lag/, or on CUDA.

A check is a function of this file that starts with `check_`; it raises what is wrong. Most compare the device with the
CPU, where the same group does the same calls.

| variable | what it does |
| --- | --- |
| `LANTERNE_DEVICE_KIND` | lag, or cuda for tests/gpu/test_gpu_torch.py, which leaves out the checks of HELD |
| `LANTERNE_DEVICE_WAY` | Options.device |
| `LAG_NATIVE` | a backend stands for torch's own on the stand-in device; see `register_native` |
| `LAG_RUNS` | runs of `check_seeded_runs` |
| `LAG_SABOTAGE` | breaks lanterne on purpose; see `sabotage` |
"""

import gc
import json
import os
import random
import sys
import threading
import time
import traceback
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).with_name("lag")))

import lag_device
import torch
import torch.distributed as dist
from refusals import refuses
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import lanterne.torch
from lanterne.collectives.jobs import join
from lanterne.torch import device_calls, device_works
from lanterne.torch.accelerators import accelerator_here
from lanterne.torch.meeting import meet
from lanterne.torch.process_group import HostGroup, LanterneGroup

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
KIND = os.environ.get("LANTERNE_DEVICE_KIND", lag_device.KIND)
LAG = lag_device.use() if KIND == lag_device.KIND else None
STORE = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), SIZE, RANK == 0)
# Needs the stand-in: its memory, a stream that waits until it is told, and no backend of torch's.
HELD = (
    "check_options_that_cannot_be",
    "check_a_stream_that_does_not_come_is_named",
    "check_results_of_dropped_tensors",
)
RUNS = int(os.environ.get("LAG_RUNS", "300"))
CYCLES_PER_S = 1.5e9  # of an H200 some 1.98e9
# Of this rank's.
DEVICE = 0 if LAG is not None else RANK % torch.cuda.device_count()
LARGE = 1 << 22  # elements: ranks find out who is late
SUM, AVG, MAX = dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX


def tensor_of(count, device, dtype=torch.float32, seed=0):
    """Small whole numbers, which add up alike in any order; others on each rank."""
    return ((torch.arange(count) + 3 * RANK + seed) % 5).to(dtype).to(device)


def same(on_device, on_cpu):
    assert len(on_device) == len(on_cpu) > 0
    for one, other in zip(on_device, on_cpu, strict=True):
        assert torch.equal(one.cpu(), other), (one, other)


def late_stream(late_s):
    """Have the current stream do nothing for `late_s`, about that on CUDA; the CPU goes on."""
    if LAG is None:
        torch.cuda._sleep(int(late_s * CYCLES_PER_S))
    else:
        lag_device.late_stream(LAG, late_s)


def verbs(device, seed=0, dtype=torch.float32):
    """Functions by name that each do one verb on `device`, and return (its Work, tensors it writes)."""

    def make(count=6, more=0):
        return tensor_of(count, device, dtype, seed + more)

    def empty(count):
        return torch.zeros(count, dtype=dtype, device=device)

    def parts(count=2):
        return [make(count, more) for more in range(SIZE)]

    def all_reduce(op):
        x = make()
        return dist.all_reduce(x, op, async_op=True), [x]

    def broadcast():
        x = make()
        return dist.broadcast(x, 1, async_op=True), [x]

    def reduce():
        x = make()
        return dist.reduce(x, 1, async_op=True), [x] if RANK == 1 else [empty(1)]

    def all_gather():
        out = [empty(6) for _ in range(SIZE)]
        return dist.all_gather(out, make(), async_op=True), out

    def all_gather_single():
        out = empty(6 * SIZE)
        return dist.all_gather_single(out, make(), async_op=True), [out]

    def gather():
        out = [empty(6) for _ in range(SIZE)]
        return dist.gather(make(), out if RANK == 0 else None, async_op=True), out

    def scatter():
        out = empty(2)
        return dist.scatter(out, parts() if RANK == 0 else None, async_op=True), [out]

    def reduce_scatter():
        out = empty(2)
        return dist.reduce_scatter(out, parts(), async_op=True), [out]

    def reduce_scatter_single():
        out = empty(2)
        return dist.reduce_scatter_single(out, make(2 * SIZE), async_op=True), [out]

    def all_to_all():
        out = [empty(2) for _ in range(SIZE)]
        return dist.all_to_all(out, parts(), async_op=True), out

    def all_to_all_single():
        mine = [(RANK + other) % 3 + 1 for other in range(SIZE)]
        out = empty(sum(mine))
        return dist.all_to_all_single(out, make(sum(mine)), mine, mine, async_op=True), [out]

    def messages():
        sent, received = make(3), empty(3)
        after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
        ops = [dist.P2POp(dist.isend, sent, after), dist.P2POp(dist.irecv, received, before)]
        works = dist.batch_isend_irecv(ops)
        return Waiting(works), [received]

    found = [broadcast, reduce, all_gather, all_gather_single, gather, scatter, reduce_scatter, reduce_scatter_single]
    found += [all_to_all, all_to_all_single, messages]
    ops = {f"all_reduce {op}": op for op in (SUM, MAX)}
    return {name: lambda op=op: all_reduce(op) for name, op in ops.items()} | {each.__name__: each for each in found}


class Waiting:
    """Several Works as one."""

    def __init__(self, works):
        self.works = works

    def wait(self):
        for work in self.works:
            work.wait()


def check_every_verb():
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for name, on_device in verbs(KIND, dtype=dtype).items():
            work, got = on_device()
            work.wait()
            other, expected = verbs("cpu", dtype=dtype)[name]()
            other.wait()
            try:
                same(got, expected)
            except AssertionError as error:
                raise AssertionError(f"{name} of {dtype}: {error}") from error
    dist.all_reduce(x := tensor_of(6, KIND), AVG)
    dist.all_reduce(y := tensor_of(6, "cpu"), AVG)
    same([x], [y])


def check_seeded_runs(runs=RUNS, first=49):
    """Calls in a random order, on streams that are late at random, waited for at random; 0 wrong."""
    shared, own = random.Random(first), random.Random(f"{first} {RANK}")
    streams = [torch.Stream(device=KIND) for _ in range(2)]
    for run in range(runs):
        names = shared.sample(sorted(verbs("cpu")), 3)
        pending = []
        with torch.get_device_module(KIND).stream(own.choice(streams)):
            if own.random() < 0.2:
                late_stream(own.random() * 5e-3)
            for index, name in enumerate(names):
                work, got = verbs(KIND, seed=run + index)[name]()
                pending.append((work, name, got, run + index))
                if own.random() < 0.5:
                    time.sleep(own.random() * 1e-3)
            for work, _, _, _ in own.sample(pending, len(pending)):
                work.wait()
            results = [[each.cpu() for each in got] for _, _, got, _ in pending]
        for (_, name, _, seed), got in zip(pending, results, strict=True):
            other, expected = verbs("cpu", seed=seed)[name]()
            other.wait()
            same(got, expected)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


def trained(wrap, device, steps=4):
    model = wrap(net().to(device))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(steps):
        model((torch.ones(2, 8) * (RANK + step)).to(device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    full = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in model.parameters()]
    return [each.detach().cpu() for each in full]


def check_ddp():
    def wrap(model):
        return DistributedDataParallel(model, bucket_cap_mb=0.001)

    def hooked(model):
        ddp = wrap(model)
        ddp.register_comm_hook(None, lanterne.torch.comm_hook)
        return ddp

    for each in (wrap, hooked):
        same(trained(each, KIND), trained(each, "cpu"))


def check_fsdp2():
    from torch.distributed.fsdp import fully_shard

    def sharded(device):
        mesh = dist.init_device_mesh(device, (SIZE,))

        def wrap(model):
            for layer in model:
                if isinstance(layer, nn.Linear):
                    fully_shard(layer, mesh=mesh)
            return fully_shard(model, mesh=mesh)

        return wrap

    same(trained(sharded(KIND), KIND), trained(sharded("cpu"), "cpu"))


def check_hsdp():
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)

    def sharded(device):
        mesh = dist.init_device_mesh(device, (2, SIZE // 2), mesh_dim_names=("replicate", "shard"))
        return lambda model: fully_shard(model, mesh=mesh, mp_policy=policy)

    same(trained(sharded(KIND), KIND), trained(sharded("cpu"), "cpu"))


def check_pipelines():
    from torch.distributed import pipelining

    def gradients(device, schedule, num_stages):
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()).to(device) for _ in range(num_stages)]
        own = list(range(RANK, num_stages, SIZE))
        place = torch.device(device) if device == "cpu" else torch.device(device, DEVICE)
        stages = [pipelining.PipelineStage(layers[index], index, num_stages, place) for index in own]
        run = schedule(
            stages if num_stages > SIZE else stages[0],
            n_microbatches=2 * SIZE,
            loss_fn=lambda x, y: (x - y).square().mean(),
        )
        torch.manual_seed(5)
        x, y = (torch.randn(4 * SIZE, 8).to(device) for _ in range(2))
        losses = []
        for _ in range(2):
            last = {"target": y, "losses": losses} if num_stages - 1 in own else {}
            run.step(*([x] if RANK == 0 else []), **last)
        return [each.grad.cpu() for index in own for each in layers[index].parameters()]

    for schedule, per_rank in ((pipelining.Schedule1F1B, 1), (pipelining.ScheduleInterleaved1F1B, 2)):
        same(gradients(KIND, schedule, per_rank * SIZE), gradients("cpu", schedule, per_rank * SIZE))


def check_functional_collectives():
    import torch.distributed._functional_collectives as functional

    for device in (KIND, "cpu"):
        x = tensor_of(4, device)
        y = functional.all_reduce(x, "sum", dist.group.WORLD) + 1
        out = [y.cpu(), functional.all_gather_tensor(x, 0, dist.group.WORLD).cpu()]
        if device == KIND:
            got = out
    same(got, out)
    objects = [None] * SIZE
    dist.all_gather_object(objects, RANK)
    assert objects == list(range(SIZE))


def check_any_source():
    if RANK:
        dist.send(tensor_of(3, KIND), 0, tag=7)
        return
    sources = set()
    for _ in range(SIZE - 1):
        x = torch.zeros(3, device=KIND)
        source = dist.recv(x, tag=7)
        sources.add(source)
        assert torch.equal(x.cpu(), ((torch.arange(3) + 3 * source) % 5).float())
    assert sources == set(range(1, SIZE))


def check_wait_keeps_no_cpu():
    """A late stream holds up its own rank's results, and no CPU."""
    module = torch.get_device_module(KIND)
    x = torch.ones(LARGE, device=KIND)
    dist.all_reduce(x)
    x.cpu()
    dist.barrier()
    if RANK == SIZE - 1:
        late_stream(0.5)
    start_s = time.monotonic()
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    queued_s = time.monotonic() - start_s
    module.current_stream().synchronize()
    ended_s = time.monotonic() - start_s
    assert queued_s < 0.2 and ended_s > 0.4, (queued_s, ended_s)
    assert float(x[0].cpu()) == SIZE**2


def check_late_stream_is_found():
    # 64 MiB: ranks that share cores look for late ones only in calls that take 8 ms, and 16 MiB take 5 of a quick host.
    model = nn.Linear(4096, 4096, bias=False).to(KIND)
    ddp = DistributedDataParallel(model, bucket_cap_mb=128)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
    for _ in range(4):
        loss = ddp(torch.ones(1, 4096, device=KIND)).sum()
        if RANK == SIZE - 1:
            late_stream(0.3)
        loss.backward()
        optimizer.step()
        torch.get_device_module(KIND).synchronize()
        dist.barrier()
    steps = lanterne.torch.report(last=3).steps
    assert [step.late_rank for step in steps] == [SIZE - 1] * 3, steps
    assert all(0.15 < step.late_s < 0.6 for step in steps), steps


def check_bad_input():
    here, there = torch.ones(4, device=KIND), torch.ones(4)
    refuses(ValueError, f"expected {KIND}:{DEVICE}", lambda: dist.group.WORLD.allreduce_coalesced([here, there]))
    refuses(ValueError, "expected the CPU", lambda: dist.group.WORLD.allreduce_coalesced([there, here]))
    refuses(ValueError, "share memory", lambda: dist.all_reduce(torch.ones(1, device=KIND).expand(4)))
    refuses(ValueError, "expected a contiguous one", lambda: dist.all_reduce(torch.ones(2, 3, device=KIND).t()))
    unknown = torch.zeros(2, dtype=torch.complex32, device=KIND)
    refuses(ValueError, "NumPy has no such dtype", lambda: dist.group.WORLD.broadcast(unknown, 0))
    dist.all_reduce(here)
    assert here.cpu().tolist() == [float(SIZE)] * 4


def check_options_that_cannot_be():
    for words, options in (
        ("expected 'staged', 'native' or None", lanterne.torch.Options(device="pigeon")),
        ("torch has no backend for it here", lanterne.torch.Options(device="native")),
    ):
        refuses(ValueError, words, lambda options=options: dist.new_group(list(range(SIZE)), pg_options=options))


def check_an_error_is_raised_once():
    group = dist.new_group(list(range(SIZE)))
    work = group.allreduce([torch.ones(4 + (RANK == 1), device=KIND)])
    try:
        group.settle()
    except ValueError as error:
        assert "rank 1" in str(error), error
    else:
        raise AssertionError("nothing raised")
    assert work.exception() is not None
    group.settle()


def error_of(group):
    """The error of an all_reduce that has failed, as a later call raises it; no stream waits for the calls."""
    x = torch.ones(1, device=KIND)
    until_s = time.monotonic() + 30
    while time.monotonic() < until_s:
        try:
            group.allreduce([x])
        except (ValueError, RuntimeError) as error:
            return str(error)
        time.sleep(0.01)
    raise AssertionError("no call raised within 30 s")


def check_unlike_sizes_are_named_by_the_next_call():
    group, other = (dist.new_group(list(range(SIZE))) for _ in range(2))
    work = dist.all_reduce(torch.ones(4 + (RANK == 1), device=KIND), group=group, async_op=True)
    work.wait()
    said = error_of(group)
    assert "rank 1" in said and "expected the same on every rank" in said, said
    assert work.is_completed() and not work.is_success() and work.exception() is not None
    dist.all_reduce(x := torch.ones(2, device=KIND), group=other)
    assert x.cpu().tolist() == [float(SIZE)] * 2


def check_a_stream_that_does_not_come_is_named():
    group = dist.new_group(list(range(SIZE)), timeout=timedelta(seconds=2))
    dist.all_reduce(torch.ones(4), group=group)
    x, stream = torch.ones(4, device=KIND), torch.Stream(device=KIND)
    number = LAG.hold(stream.stream_id) if RANK == 1 else None
    with torch.get_device_module(KIND).stream(stream):
        work = group.allreduce([x])
    said = error_of(group)
    assert ("did not reach it within 2 s" if RANK == 1 else "rank 1") in said, said
    if number is not None:
        LAG.release(number)
    assert work.exception() is not None
    # No stream hangs.
    torch.get_device_module(KIND).synchronize()


def check_abort():
    group = dist.new_group(list(range(SIZE)))
    if RANK == 0:
        time.sleep(0.3)
        group.abort()
    else:
        work = group.allreduce([torch.ones(4, device=KIND)])
        work.wait()
    assert "abort" in error_of(group)
    torch.get_device_module(KIND).synchronize()


def check_destroy_and_init_leak_nothing(times=100):
    def state():
        gc.collect()
        return len(os.listdir("/proc/self/fd")), threading.active_count(), 0 if LAG is None else LAG.num_held()

    def once(number):
        dist.destroy_process_group()
        begin(number)
        dist.all_reduce(x := torch.ones(2, device=KIND))
        assert x.cpu().tolist() == [float(SIZE)] * 2

    for number in range(1, 4):
        once(number)
    before = state()
    for number in range(4, times + 4):
        once(number)
    assert state() == before, (before, state())


def register_native():
    """Register the backend that stands for torch's own, NCCL, on this device: a staged group of lanterne."""

    def create(asked, _options):
        timeout_s = asked.timeout.total_seconds()
        place = meet(asked.store, asked.group_id, asked.group_rank, asked.group_size, timeout_s)
        comm = join(place, asked.group_rank, asked.group_size, None, timeout_s)
        host = HostGroup(comm.group(range(comm.world_size)), timeout_s, lambda _: None)
        accelerator = accelerator_here()
        group = LanterneGroup(comm, timeout_s, lambda _: None)
        return group.serve(accelerator, device_calls.StagedCalls(host, accelerator))

    lag_device.LagAccelerator.native = "lag_native"
    dist.Backend.register_backend("lag_native", create, extended_api=True, devices=[KIND])


def sabotage(how):
    """Break lanterne: no stream waits for a call, or memory of a call is not kept."""
    if how == "no wait":
        device_works.DeviceWork.wait = lambda _self, _timeout=None: True
    if how == "no memory":
        device_calls.kept = LAG.unowned


def check_results_of_dropped_tensors():
    """Sums of tensors that the program drops at once; the ranks look at what the host saw."""
    seen = []
    on_host = lanterne.torch.LanterneGroup.allreduce.__wrapped__
    group = dist.group.WORLD._devices.host

    def allreduce(tensors, opts):
        seen.append(float(tensors[0].sum()))
        return on_host(group, tensors, opts)

    group.allreduce = allreduce
    late_stream(0.2)
    for _ in range(4):
        dist.all_reduce(torch.ones(1 << 10).to(KIND), async_op=True)
    torch.get_device_module(KIND).synchronize()
    del group.allreduce
    assert seen == [1024.0] * 4, seen


def begin(number=0):
    """Make the default group; the store stays, since torch's own, made again at its port, meets the one before."""
    store = dist.PrefixStore(str(number), STORE)
    backend = f"cpu:lanterne,{KIND}:lanterne"
    options = lanterne.torch.Options(device=os.environ.get("LANTERNE_DEVICE_WAY"))
    dist.init_process_group(
        backend, store=store, rank=RANK, world_size=SIZE, timeout=timedelta(seconds=40), pg_options=options
    )


def main():
    if LAG is None:
        torch.cuda.set_device(DEVICE)
    elif os.environ.get("LAG_NATIVE"):
        register_native()
    start_s = time.monotonic()
    begin()
    init_s = time.monotonic() - start_s
    assert dist.group.WORLD._device_types == [torch.device("cpu"), torch.device(KIND)]
    sabotage(os.environ.get("LAG_SABOTAGE"))
    for name in sys.argv[1:]:
        said = ""
        try:
            globals()[name]()
        except Exception:
            said = traceback.format_exc()
        print(json.dumps({"name": name, "said": said}), flush=True)
    dist.destroy_process_group()
    print(json.dumps({"name": "end", "said": "", "init_s": init_s}), flush=True)


if __name__ == "__main__":
    main()
