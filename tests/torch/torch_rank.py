"""One rank of the jobs of tests/torch: `python torch_rank.py CHECK...`; prints a line of JSON for each check.

A check is a function of this file that starts with `check_`; it raises what is wrong. All run in one job, whose default
group is lanterne's, beside a group of gloo's of the same ranks, which says what is right.
"""

import json
import os
import signal
import sys
import time
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import lanterne.torch
from lanterne.errors import TransportError

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
NUMBERS = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8)
MOVED = (*NUMBERS, torch.bool, torch.complex64, torch.float8_e4m3fn)


def tensor_of(dtype, shape=(3, 4), seed=0):
    """The same on all ranks but for their number; small whole numbers, which add up alike in any order."""
    count = torch.arange(torch.Size(shape).numel()).view(shape)
    return ((count + 3 * RANK + seed) % 5).to(torch.float32).to(dtype)


def same(ours, theirs):
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        seen = [x.view(torch.uint8) if x.dtype.itemsize == 1 else x for x in (one, other)]
        assert torch.equal(*seen), (one, other)


def both(call):
    """`call(group)` returns tensors, which must be the same over lanterne and gloo."""
    same(call(None), call(GLOO))


def check_all_reduce():
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX):
        for dtype in NUMBERS:

            def call(group, op=op, dtype=dtype):
                x = tensor_of(dtype, seed=1)
                dist.all_reduce(x, op, group)
                return [x]

            both(call)
    x = tensor_of(torch.float32)
    dist.all_reduce(x, dist.ReduceOp.AVG)
    y = tensor_of(torch.float32)
    dist.all_reduce(y, group=GLOO)
    assert torch.allclose(x, y / SIZE)
    for op, whole in ((dist.ReduceOp.BAND, 0), (dist.ReduceOp.BOR, 7), (dist.ReduceOp.BXOR, 7)):
        dist.all_reduce(x := torch.tensor([1 << RANK]), op)
        assert x.tolist() == [whole]
    dist.all_reduce(x := torch.tensor([RANK == 1]))
    assert x.tolist() == [True]
    dist.all_reduce(x := torch.full((2,), 1j * RANK))
    assert x.tolist() == [3j, 3j]


def check_moves():
    def broadcast(group):
        x = tensor_of(dtype)
        dist.broadcast(x, 1, group)
        return [x]

    def all_gather(group):
        parts = [torch.empty_like(tensor_of(dtype)) for _ in range(SIZE)]
        dist.all_gather(parts, tensor_of(dtype), group)
        return parts

    def all_gather_single(group):
        whole = torch.zeros(SIZE * 12, dtype=dtype)
        dist.all_gather_single(whole, tensor_of(dtype).view(-1), group)
        return [whole]

    for dtype in MOVED:
        if dtype.itemsize > 1 or dtype in (torch.uint8,):
            for call in (broadcast, all_gather, all_gather_single):
                both(call)
        else:  # gloo knows neither
            x = tensor_of(dtype)
            dist.broadcast(x, 1)
            parts = all_gather(None)
            same([x], [parts[1]])


def check_rooted():
    def gather(group):
        parts = [torch.zeros(3, 4) for _ in range(SIZE)] if root == RANK else None
        dist.gather(tensor_of(torch.float32), parts, root, group)
        return parts or [torch.zeros(1)]

    def scatter(group):
        x = torch.zeros(3, 4)
        dist.scatter(x, [tensor_of(torch.float32, seed=i) for i in range(SIZE)] if root == RANK else None, root, group)
        return [x]

    def reduce(group):
        x = tensor_of(torch.float32)
        dist.reduce(x, root, group=group)
        return [x] if root == RANK else [torch.zeros(1)]

    for root in range(SIZE):
        for call in (gather, scatter, reduce):
            both(call)


def check_scattered():
    def single(group):
        out = torch.zeros(4)
        dist.reduce_scatter_single(out, tensor_of(torch.float32, (SIZE * 4,)), group=group)
        return [out]

    both(single)
    out, parts = torch.zeros(RANK + 1), [tensor_of(torch.float32, (rank + 1,), seed=rank) for rank in range(SIZE)]
    dist.reduce_scatter(out, parts)
    whole = torch.cat(parts)
    dist.all_reduce(whole, group=GLOO)
    assert torch.equal(out, whole.split([rank + 1 for rank in range(SIZE)])[RANK])


def check_all_to_all():
    def equal(group):
        out = torch.zeros(SIZE * 2, 3)
        dist.all_to_all_single(out, tensor_of(torch.float32, (SIZE * 2, 3)), group=group)
        return [out]

    def uneven(group):
        sizes = [rank * RANK + 1 for rank in range(SIZE)]
        out = torch.zeros(sum(sizes), 2)
        dist.all_to_all_single(out, tensor_of(torch.float32, (sum(sizes), 2)), sizes, sizes, group=group)
        return [out]

    both(equal)
    both(uneven)
    parts = [torch.full((RANK + 2 * rank,), float(RANK)) for rank in range(SIZE)]
    out = [torch.zeros(rank + 2 * RANK) for rank in range(SIZE)]
    dist.all_to_all(out, parts)
    assert all(bool((part == rank).all()) for rank, part in enumerate(out))


def check_shapes():
    """Tensors that are transposed, sliced, of no elements, of no dimensions, or that want gradients."""
    for make in (
        lambda: tensor_of(torch.float32).t(),
        lambda: tensor_of(torch.float32, (6, 4))[::2, 1:3],
        lambda: torch.zeros(0),
        lambda: torch.tensor(float(RANK)),
        lambda: tensor_of(torch.float32).requires_grad_(),
    ):

        x, y = make(), make()
        # gloo takes the memory of a slice for that of a whole tensor.
        a, b = (each.detach().clone(memory_format=torch.contiguous_format) for each in (x, y))
        for one, other, group in ((x, y, None), (a, b, GLOO)):
            with torch.no_grad():
                dist.all_reduce(one, group=group)
                dist.broadcast(other, 1, group)
        same([x.detach(), y.detach()], [a, b])


def check_messages():
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    x, y = tensor_of(torch.bfloat16), torch.zeros(3, 4, dtype=torch.bfloat16)
    ops = [dist.P2POp(dist.isend, x, after), dist.P2POp(dist.irecv, y, before)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    work = [dist.isend(x, after, tag=7), dist.irecv(z := torch.zeros(4, 3, dtype=torch.bfloat16).t(), before, tag=7)]
    assert work[1].get_future().wait()[0] is not None and torch.equal(y, z)
    work[0].wait()
    if RANK:
        dist.send(torch.full((2,), float(RANK)), 0, tag=1 << 20)
    else:
        seen = [(dist.recv(w := torch.zeros(2), tag=1 << 20), float(w[0])) for _ in range(SIZE - 1)]
        assert sorted(seen) == [(rank, float(rank)) for rank in range(1, SIZE)], seen


def check_futures():
    """Works are complete without a wait, futures run callbacks, which may wait for other calls."""
    works = [dist.all_reduce(torch.full((1 << 16,), float(RANK)), async_op=True) for _ in range(4)]
    futures = [work.get_future() for work in works]
    assert all(float(future.wait()[0][0]) == 3 for future in futures)
    assert all(work.is_completed() and work.is_success() for work in works)
    work = dist.barrier(async_op=True)
    until = time.monotonic() + 20
    while not work.is_completed():
        assert time.monotonic() < until

    def again(future):
        x = future.value()[0] + 1
        return dist.all_reduce(x, async_op=True).get_future().wait()[0]

    first = dist.all_reduce(torch.ones(8), async_op=True).get_future()
    assert float(first.then(again).wait()[0]) == SIZE * (SIZE + 1)


def check_objects_and_groups():
    told = [None] * SIZE
    dist.all_gather_object(told, {"rank": RANK})
    assert told == [{"rank": rank} for rank in range(SIZE)]
    pair = dist.new_group([0, 2])
    if RANK != 1:
        x = torch.full((2,), float(RANK))
        dist.all_reduce(x, group=pair)
        assert x.tolist() == [2, 2] and dist.get_world_size(pair) == 2 and dist.get_backend(pair) == "lanterne"
        mine = dist.new_group([0, 2], use_local_synchronization=True)
        dist.barrier(mine)
        dist.destroy_process_group(mine)
    dist.barrier()


def check_coalesced():
    xs = [tensor_of(torch.float32, seed=seed) for seed in range(3)]
    with dist.distributed_c10d._coalescing_manager():
        for x in xs:
            dist.all_reduce(x)
    ys = [tensor_of(torch.float32, seed=seed) for seed in range(3)]
    for y in ys:
        dist.all_reduce(y, group=GLOO)
    same(xs, ys)


def train(wrap, steps=4):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    wrapped = wrap(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.1)
    torch.manual_seed(RANK)
    losses = []
    for _ in range(steps):
        loss = wrapped(torch.randn(16, 32)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def check_ddp():
    for options in ({}, {"bucket_cap_mb": 0.005}, {"gradient_as_bucket_view": True, "static_graph": True}):
        ours, theirs = (
            train(lambda model, group=group: DistributedDataParallel(model, process_group=group, **options))
            for group in (None, GLOO)
        )
        assert torch.allclose(ours, theirs, rtol=1e-5), (ours, theirs)


def check_fsdp2():
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    def wrap(mesh):
        def shard(model):
            for layer in model:
                if isinstance(layer, torch.nn.Linear):
                    fully_shard(layer, mesh=mesh)
            return fully_shard(model, mesh=mesh)

        return shard

    meshes = (DeviceMesh.from_group(group, "cpu") for group in (dist.group.WORLD, GLOO))
    ours, theirs = (train(wrap(mesh)) for mesh in meshes)
    assert torch.allclose(ours, theirs, rtol=1e-5), (ours, theirs)


def refuses(kind, words, call):
    try:
        call()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"nothing was raised, expected {kind}")


def check_errors():
    refuses(ValueError, "expected the CPU", lambda: dist.all_reduce(torch.zeros(1, device="meta")))
    wrong = torch.zeros(2 + (RANK == 1))
    group = dist.new_group(list(range(SIZE)))
    refuses(ValueError, "expected the same on every rank", lambda: dist.all_reduce(wrong, group=group))
    refuses(ValueError, "expected", lambda: dist.all_reduce(torch.zeros(1), group=group))
    assert group.errored() is not None
    quick = dist.new_group(list(range(SIZE)), timeout=timedelta(seconds=1))
    if RANK != 1:
        refuses(dist.DistBackendError, " Timed out ", lambda: dist.barrier(quick))
    dist.barrier()
    ended = dist.new_group(list(range(SIZE)))
    if RANK == 2:
        ended.abort()
    refuses(dist.DistBackendError, "aborted", lambda: dist.all_reduce(torch.zeros(1 << 18), group=ended))
    options = {"backend": "lanterne", "pg_options": {"fast": True}}
    refuses(ValueError, "expected lanterne.torch.Options", lambda: dist.new_group(list(range(SIZE)), **options))


def check_use_after_destroy():
    group = dist.new_group(list(range(SIZE)))
    dist.destroy_process_group(group)
    refuses(dist.DistBackendError, "closed", lambda: group.allreduce([torch.zeros(1)]).wait())


def killed():
    """Rank 2 dies in the middle of a backward pass."""
    layers = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
    model = DistributedDataParallel(layers, bucket_cap_mb=1)
    if RANK == 2:
        model.register_comm_hook(None, lambda _state, bucket: os.kill(os.getpid(), signal.SIGKILL))
    try:
        for _ in range(1000):
            model(torch.randn(4, 256)).sum().backward()
    except (RuntimeError, TransportError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def main():
    global GLOO  # noqa: PLW0603
    start_s = time.monotonic()
    dist.init_process_group("lanterne", timeout=timedelta(seconds=40))
    init_s = time.monotonic() - start_s
    if sys.argv[1] == "killed":
        print(json.dumps({"name": "killed", "said": killed()}), flush=True)
        return
    assert isinstance(dist.group.WORLD, lanterne.torch.LanterneGroup)
    GLOO = dist.new_group(list(range(SIZE)), backend="gloo", timeout=timedelta(seconds=40))
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
