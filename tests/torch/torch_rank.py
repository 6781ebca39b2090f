"""One rank of the jobs of tests/torch: `python torch_rank.py CHECK...`; prints a line of JSON for each check.

A check is a function of this file that starts with `check_`; it raises what is wrong. All run in one job, whose default
group is lanterne's, beside a group of gloo's of the same ranks, which says what is right.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from refusals import refuses
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
        assert one.dtype == other.dtype and one.shape == other.shape, (one, other)
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
        assert x.tolist() == [whole], op
    dist.all_reduce(x := torch.tensor([RANK == 1]))
    assert x.tolist() == [True]
    dist.all_reduce(x := torch.full((2,), 1j * RANK))
    assert x.tolist() == [3j, 3j]


def check_sparse():
    """Of other elements on each rank, of none on one, of rows; and the gradients of an embedding."""
    whole = torch.zeros(5, 4)
    whole[RANK] = whole[3] = RANK
    for dims in (1, 2):

        def call(group, dims=dims):
            x = whole.to_sparse(dims)
            dist.all_reduce(x, group=group)
            return [x.coalesce().indices(), x.coalesce().values()]

        both(call)
    dist.all_reduce(x := whole.to_sparse(), dist.ReduceOp.AVG)
    work = dist.all_reduce(y := whole.to_sparse(), async_op=True)
    work.wait()
    assert torch.allclose(SIZE * x.to_dense(), y.to_dense()) and float(y.to_dense()[3, 0]) == sum(range(SIZE))
    learnt = []
    for group in (None, GLOO):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Embedding(10, 4, sparse=True), torch.nn.Linear(4, 2))
        ddp = DistributedDataParallel(model, process_group=group)
        ddp(torch.tensor([RANK, 7])).sum().backward()
        learnt.append([each.grad.to_dense() for each in model.parameters()])
    assert all(torch.allclose(one, other) for one, other in zip(*learnt, strict=True)), learnt
    group = dist.new_group(list(range(SIZE)))
    odd = torch.zeros(2 + (RANK == 1)).to_sparse()
    refuses(ValueError, "expected the same on every rank", lambda: dist.all_reduce(odd, group=group))


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

    for root in range(SIZE):  # noqa: B007 (the three read it)
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


def check_lists_of_uneven_parts():
    sizes = [2 * rank for rank in range(SIZE)]  # one of them is empty
    expected = [torch.full((size,), float(rank)) for rank, size in enumerate(sizes)]
    own = expected[RANK].clone()
    for _ in range(2):
        out = [torch.zeros(size) for size in sizes]
        dist.all_gather(out, own)
        assert all(map(torch.equal, out, expected)), out
        out = [torch.zeros(size) for size in sizes]
        dist.gather(own, out if RANK == 1 else None, dst=1)
        assert RANK != 1 or all(map(torch.equal, out, expected)), out
        part = torch.zeros(sizes[RANK])
        dist.scatter(part, expected if RANK == 1 else None, src=1)
        assert torch.equal(part, expected[RANK]), part


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
    else:
        # Since 2.14 torch counts these calls in the names of later groups, so every rank makes one.
        dist.new_group([1], use_local_synchronization=True)
    dist.barrier()


def check_storage_can_be_resized_after_each_verb():
    """As FSDP1 resizes parameters, and users their tensors."""
    one, many = torch.zeros(SIZE), [torch.zeros(1) for _ in range(SIZE)]
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    sent, received = torch.zeros(2), torch.zeros(2)
    whole, part, strided = torch.zeros(SIZE), torch.zeros(1), torch.zeros(SIZE, 2).t()
    for call in (
        lambda: dist.all_reduce(one),
        lambda: dist.all_reduce(strided),
        lambda: dist.broadcast(one, 0),
        lambda: dist.reduce(one, 0),
        lambda: dist.all_gather(many, part),
        lambda: dist.all_gather_single(whole, part),
        lambda: dist.gather(part, many if RANK == 0 else None),
        lambda: dist.scatter(part, many if RANK == 0 else None),
        lambda: dist.reduce_scatter(part, many),
        lambda: dist.reduce_scatter_single(part, whole),
        lambda: dist.all_to_all(many, [torch.zeros(1) for _ in range(SIZE)]),
        lambda: dist.all_to_all_single(one, whole),
        lambda: [work.wait() for work in (dist.isend(sent, after), dist.irecv(received, before))],
    ):
        call()
        for tensor in (one, *many, sent, received, whole, part, strided):
            nbytes = tensor.untyped_storage().nbytes()
            tensor.untyped_storage().resize_(0)
            tensor.untyped_storage().resize_(nbytes)


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
            train(partial(DistributedDataParallel, process_group=group, **options)) for group in (None, GLOO)
        )
        assert torch.allclose(ours, theirs, rtol=1e-5), (ours, theirs)


def check_comm_hook_and_report():
    def wrap(model, hooked=True):
        ddp = DistributedDataParallel(model, process_group=GLOO, bucket_cap_mb=0.005)
        if hooked:
            ddp.register_comm_hook(None, lanterne.torch.comm_hook)
        return ddp

    ours = train(wrap)
    report = lanterne.torch.report(last=3)
    theirs = train(lambda model: wrap(model, hooked=False))
    assert torch.allclose(ours, theirs, rtol=1e-5), (ours, theirs)
    assert report.rank == RANK and len(report.steps) == 3 and "late rank" in str(report)
    assert {(step.calls >= 1, step.nbytes) for step in report.steps} == {(True, 4 * (32 * 64 + 64 + 64 * 8 + 8))}
    refuses(ValueError, "expected a process group of lanterne", lambda: lanterne.torch.report(GLOO))


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


def check_fsdp1():
    from torch.distributed.fsdp import FullyShardedDataParallel

    def wrap(group):
        return partial(
            FullyShardedDataParallel, process_group=group, device_id=torch.device("cpu"), use_orig_params=True
        )

    ours, theirs = (train(wrap(group)) for group in (dist.group.WORLD, GLOO))
    assert torch.allclose(ours, theirs, rtol=1e-5), (ours, theirs)


def check_compiled():
    """torch.compile of a DDP model, of one with our hook, and of a call whose wait is behind a graph break."""

    def compiled(model, hooked=False):
        ddp = DistributedDataParallel(model, process_group=GLOO if hooked else None)
        if hooked:
            ddp.register_comm_hook(None, lanterne.torch.comm_hook)
        return torch.compile(ddp, backend="aot_eager")

    theirs = train(partial(DistributedDataParallel, process_group=GLOO))
    for wrap in (compiled, partial(compiled, hooked=True)):
        assert torch.allclose(train(wrap), theirs, rtol=1e-5)

    @torch.compile(backend="aot_eager")
    def broken(x):
        x = x + 1
        work = dist.all_reduce(x, async_op=True)
        torch._dynamo.graph_break()
        work.wait()
        return x * 2

    assert broken(torch.full((2,), float(RANK))).tolist() == [12.0, 12.0]


def check_errors():
    refuses(ValueError, "expected the CPU", lambda: dist.all_reduce(torch.zeros(1, device="meta")))
    quick = dist.new_group(list(range(SIZE)), timeout=timedelta(seconds=1))
    if RANK != 1:
        refuses(dist.DistBackendError, " Timed out ", lambda: dist.barrier(quick))
    dist.barrier()
    slow = dist.new_group(list(range(SIZE)))
    work = None if RANK == 1 else dist.all_reduce(torch.zeros(9), group=slow, async_op=True)
    if work is not None:
        refuses(dist.DistBackendError, " Timed out ", lambda: work.wait(timedelta(milliseconds=300)))
        assert work.is_completed() and not work.is_success() and isinstance(work.exception(), dist.DistBackendError)
    dist.barrier()
    ended = dist.new_group(list(range(SIZE)))
    if RANK == 2:
        ended.abort()
    refuses(dist.DistBackendError, "aborted", lambda: dist.all_reduce(torch.zeros(1 << 18), group=ended))


def check_ranks_that_differ():
    """The group ends on all ranks, each of which is told what the others gave."""
    odd = RANK == 1
    one = torch.zeros(3)

    def mixed(group):
        work = dist.broadcast(one, 0, group, async_op=True) if odd else dist.all_reduce(one, group=group, async_op=True)
        work.get_future().wait()

    for call in (
        lambda group: dist.all_reduce(torch.zeros(2 + odd), group=group),
        lambda group: dist.all_reduce(torch.zeros(2, dtype=torch.float64 if odd else torch.float32), group=group),
        lambda group: dist.all_reduce(one, dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM, group),
        lambda group: dist.all_gather([torch.zeros(2 + odd) for _ in range(SIZE)], torch.zeros(2 + odd), group),
        lambda group: dist.barrier(group) if odd else dist.all_reduce(one, group=group),
        mixed,
    ):
        group = dist.new_group(list(range(SIZE)))
        refuses((ValueError, RuntimeError), "expected the same on every rank", partial(call, group))
        refuses(ValueError, "expected", partial(dist.all_reduce, one, group=group))
        assert group.errored() is not None, f"the call of line {call.__code__.co_firstlineno}"
    if RANK == 0:
        dist.send(torch.zeros(5), 1, tag=3)
    elif odd:
        refuses(ValueError, "got a message of 20 bytes", lambda: dist.recv(torch.zeros(4), 0, tag=3))
        dist.recv(torch.zeros(5), 0, tag=3)


def check_bad_input():
    """What is wrong on this rank alone is said before anything is sent: the group goes on."""
    ranks, one, world = list(range(SIZE)), torch.zeros(SIZE), dist.group.WORLD
    parts, others = [torch.zeros(1) for _ in ranks], [torch.zeros(1, dtype=torch.int32) for _ in ranks]
    for words, call in (
        ("expected lanterne.torch.Options", lambda: dist.new_group(ranks, backend="lanterne", pg_options={"a": 1})),
        (
            "did you mean 'tcp'",
            lambda: dist.new_group(ranks, backend="lanterne", pg_options=lanterne.torch.Options(transport="tpc")),
        ),
        ("whose elements share memory", lambda: dist.all_reduce(torch.ones(4).expand(3, 4))),
        ("whose elements share memory", lambda: world.allgather([[one.expand(2, SIZE)] * SIZE], [torch.ones(2, SIZE)])),
        ("expected a dense one", lambda: world.broadcast([one.to_sparse()], 0)),
        ("expected sum or avg", lambda: dist.all_reduce(one.to_sparse(), dist.ReduceOp.MAX)),
        ("which lanterne cannot move", lambda: world.broadcast([torch.zeros(2, dtype=torch.complex32)], 0)),
        ("got a list of 1", lambda: world.allgather([[one]], [one])),
        ("as tensor", lambda: world.allgather([parts], [one])),
        ("expected one dtype", lambda: world.allgather([others], [parts[0]])),
        ("expected one dtype", lambda: world.alltoall(parts, [*parts[1:], others[0]])),
        ("got split sizes", lambda: world.alltoall_base(one, one, [1] * SIZE, [2] * SIZE)),
        ("expected one dtype", lambda: world.reduce_scatter([parts[0]], [others])),
        ("expected 0 to 2", lambda: world.broadcast([one], SIZE)),
        ("got peer", lambda: world.send([one], SIZE, 0)),
        ("got tag", lambda: world.send([one], (RANK + 1) % SIZE, -1)),
        ("a timedelta of more than 0", lambda: world.set_timeout(timedelta(0))),
    ):
        refuses(ValueError, words, call)
    refuses(RuntimeError, "expected cpu", lambda: world._get_backend(torch.device("cuda")))
    dist.barrier()


def check_a_gather_of_unlike_sizes_is_named():
    group = dist.new_group([0, 1])
    parts = [torch.zeros(4), torch.zeros(4)] if RANK == 0 else None
    if RANK == 0:
        refuses(Exception, "rank 1 sent 20 bytes, expected 16", lambda: dist.gather(torch.zeros(4), parts, 0, group))
    elif RANK == 1:
        dist.gather(torch.zeros(5), parts, 0, group)
    dist.barrier()


def check_other_roots_are_named_by_the_next_call():
    group = dist.new_group(list(range(SIZE)))
    dist.broadcast(torch.zeros(4), RANK % 2, group)
    refuses(ValueError, "root=1)", lambda: dist.barrier(group))
    dist.barrier()


def check_monitored_barrier():
    """Who did not come is named, by rank 0 and then by all; whoever has failed can come again, alone or with all."""
    group = dist.new_group(list(range(SIZE)))
    for _ in range(2):
        dist.monitored_barrier(group, timedelta(seconds=40), wait_all_ranks=True)
    one, two = "Rank 1 failed to pass monitoredBarrier", "Ranks 1, 2 failed to pass monitoredBarrier"
    for come, every, words in (({0, 2}, False, one), ({0}, True, two), ({0}, False, one)):
        if RANK in come:
            told = words if RANK == 0 else f"Rank {RANK} successfully reached monitoredBarrier"
            refuses(
                dist.DistBackendError,
                told,
                lambda every=every: dist.monitored_barrier(group, timedelta(seconds=1), wait_all_ranks=every),
            )
        dist.barrier()
        dist.monitored_barrier(group)
    if RANK < 2:
        # Rank 1 is there, though it has come before rank 0, and its time is over sooner.
        time.sleep(0.4 if RANK == 0 else 0.0)
        words = "waiting: Rank 2 failed" if RANK == 0 else "Rank 2 did not come"
        refuses(
            dist.DistBackendError,
            words,
            lambda: dist.monitored_barrier(group, timedelta(seconds=1), wait_all_ranks=True),
        )
    dist.barrier()
    dist.monitored_barrier(group)
    if RANK == 2:
        refuses(dist.DistBackendError, "rank 0, which did not answer", lambda: dist.monitored_barrier(group, 0.1))
    dist.barrier()
    if RANK == 0:
        refuses(dist.DistBackendError, "Rank 0 timed out", lambda: group.monitored_barrier(timedelta(0)))
    dist.all_reduce(torch.zeros(2), group=group)
    dist.monitored_barrier(group)
    dist.monitored_barrier(GLOO)
    pair = dist.new_group([1, 2])
    if RANK:
        dist.monitored_barrier(pair)


def check_functions_of_torchs_own_backends():
    """_set_pg_timeout, split_group: what they give, what they refuse, and that other backends have theirs."""
    set_timeout, group = dist.distributed_c10d._set_pg_timeout, dist.new_group(list(range(SIZE)))
    set_timeout(timedelta(seconds=1), group)
    set_timeout(timedelta(seconds=40), GLOO)
    if RANK == 0:
        refuses(dist.DistBackendError, " Timed out ", lambda: dist.barrier(group))
    dist.barrier()
    refuses(ValueError, "expected a timedelta", lambda: set_timeout(3.0, dist.group.WORLD))
    refuses(ValueError, "expected a timedelta", lambda: set_timeout(timedelta(0)))
    part = dist.split_group(split_ranks=[[2, 1]])
    assert (part is None) == (RANK == 0)
    if part is not None:
        assert dist.get_process_group_ranks(part) == [1, 2] and part.size() == 2 and part.rank() == RANK - 1
        dist.all_reduce(x := torch.full((2,), float(RANK)), group=part)
        assert x.tolist() == [3, 3]
        single = dist.split_group(part, [[0], [1]], timeout=timedelta(seconds=30))
        assert dist.get_process_group_ranks(single) == [RANK]
        refuses(ValueError, "ranks 0 to 1", lambda: dist.split_group(part, [[0, 2]]))
        again = dist.split_group(split_ranks=[[1, 2]])
        dist.barrier(again)
    # Groups of gloo's meet by their names, which count the groups before.
    dist.barrier(dist.new_group(backend="gloo", timeout=timedelta(seconds=20)))
    for ranks in (None, [], [[0], []], [[0, 1], [1, 2]], [[0, 3]]):
        refuses(ValueError, "expected lists of ranks 0 to 2", lambda ranks=ranks: dist.split_group(None, ranks))
    refuses(ValueError, "expected 'lanterne' or None", lambda: dist.split_group(None, [[0]], backend="gloo"))


def check_after_the_end():
    """Of a group that was destroyed, calls under way and new ones raise."""
    group = dist.new_group(list(range(SIZE)))
    work = dist.all_reduce(torch.zeros(1 << 18), group=group, async_op=True) if RANK == 0 else None
    dist.destroy_process_group(group)
    if work is not None:
        refuses(dist.DistBackendError, "closed", work.wait)
        refuses(RuntimeError, "closed", work.get_future().wait)
    one = torch.zeros(SIZE)
    for call in (
        lambda: group.allreduce([one]).wait(),
        lambda: group.barrier().wait(),
        lambda: group.send([one], (RANK + 1) % SIZE, 0),
        lambda: group.recv([one], (RANK + 1) % SIZE, 0),
        lambda: group.allgather([[one] * SIZE], [one]),
    ):
        refuses(dist.DistBackendError, "closed", call)
    refuses(ValueError, "", lambda: dist.all_reduce(one, group=group))
    group.shutdown()
    group.abort()


def check_a_fork_is_told_that_it_is_none_of_the_ranks():
    """A process forked from a rank, as data loaders are, cannot call; the group goes on without notice of it."""
    if RANK == 0:
        reading, writing = os.pipe()
        if os.fork() == 0:
            said = b"nothing"
            try:
                dist.all_reduce(torch.ones(3))
            except dist.DistBackendError as error:
                said = str(error).encode()
            os.write(writing, said)
            os._exit(0)
        os.wait()
        said = os.read(reading, 4096).decode()
        assert "this process is a fork of the one that called init" in said, said
    x = torch.ones(3)
    dist.all_reduce(x)
    assert x.tolist() == [SIZE] * 3


def check_abort_in_another_thread():
    group = dist.new_group(list(range(SIZE)))
    told = []

    def call():
        try:
            dist.barrier(group)
        except dist.DistBackendError as error:
            told.append(str(error))

    waiting = threading.Thread(target=call)
    if RANK == 0:
        waiting.start()
        time.sleep(0.1)
        group.abort()
        waiting.join(20)
        assert told and "aborted" in told[0], told
    dist.barrier()


def lost(way):
    """Train until rank 2 is lost in a backward pass: killed, or stopped, and killed after 12 s."""
    layers = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
    model = DistributedDataParallel(layers, bucket_cap_mb=1)
    if RANK == 2:
        if way == "stopped":
            subprocess.Popen(
                ["sh", "-c", f"sleep 12; kill -KILL {os.getpid()}"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        ends = signal.SIGKILL if way == "killed" else signal.SIGSTOP
        model.register_comm_hook(None, lambda _state, bucket: os.kill(os.getpid(), ends))
    try:
        for _ in range(1000):
            model(torch.randn(4, 256)).sum().backward()
    except (RuntimeError, TransportError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def main():
    global GLOO  # noqa: PLW0603
    start_s = time.monotonic()
    dist.init_process_group("lanterne", timeout=timedelta(seconds=3 if sys.argv[1] == "stopped" else 40))
    init_s = time.monotonic() - start_s
    if sys.argv[1] in ("killed", "stopped"):
        print(json.dumps({"name": sys.argv[1], "said": lost(sys.argv[1])}), flush=True)
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
    from torch.distributed.nn import functional

    dist.destroy_process_group()
    dist.init_process_group("lanterne", timeout=timedelta(seconds=40))
    # Its group is the default one of when it was imported, unless that has ended.
    functional.all_reduce(x := torch.ones(2, requires_grad=True)).sum().backward()
    dist.destroy_process_group()
    said = "" if x.grad.tolist() == [SIZE, SIZE] else f"a second default group: got gradients {x.grad.tolist()}"
    print(json.dumps({"name": "end", "said": said, "init_s": init_s}), flush=True)


if __name__ == "__main__":
    main()
