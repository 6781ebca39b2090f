"""Every verb that moves parts or scans, on a communicator of any transport: results against NumPy's."""

import numpy as np

from lanterne.kernels.dtypes import PremulSum

# By op: how NumPy does it.
INTEGER_OPS = {
    **{"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor},
    **{"land": np.logical_and, "lor": np.logical_or, "lxor": np.logical_xor},
}


def check_verbs(comm, algorithm="auto"):
    """All of them, by one algorithm: a name, or "first" and "last", of those of the transport for each collective."""
    for check in (gathers, uneven, scans, types, barriers):
        check(comm, lambda name: pick(comm, name, algorithm))
    check_messages(comm)


def pick(comm, collective, algorithm):
    offered = [name for name in comm.algorithms(collective) if name != "native"]
    return {"first": offered[0], "last": offered[-1]}.get(algorithm, algorithm)


def gathers(comm, named):
    n, me = comm.world_size, comm.rank
    for root in (0, n - 1):
        mine = np.arange(5) + 10 * me
        everything = np.concatenate([np.arange(5) + 10 * rank for rank in range(n)])
        out = np.full(5 * n, -1)
        comm.gather(mine, out if me == root else None, root, algorithm=named("gather"))
        np.testing.assert_array_equal(out, everything if me == root else -1, err_msg=f"root {root}")
        part = np.empty(5, int)
        comm.start_scatter(out if me == root else None, part, root, algorithm=named("scatter")).wait()
        np.testing.assert_array_equal(part, mine, err_msg=f"root {root}")
        if me == root:
            out[:] = np.where(np.arange(5 * n) // 5 == me, out, -1)
        inside = out[5 * me : 5 * me + 5]
        comm.gather(inside if me == root else mine, out, root, algorithm=named("gather"))
        np.testing.assert_array_equal(out, everything if me == root else -1, err_msg=f"root {root}")
        comm.scatter(out, inside if me == root else part, root, algorithm=named("scatter"))
        np.testing.assert_array_equal(out, everything if me == root else -1, err_msg=f"root {root}")


def uneven(comm, named):
    """Counts: 0, 1, 2, ... elements of the ranks; of an all-to-all of every pair another number."""
    n, me, root = comm.world_size, comm.rank, comm.world_size // 2
    counts = [300 * rank for rank in range(n)]
    ours, parts = np.full(counts[me], float(me)), np.repeat(np.arange(float(n)), counts)
    out = np.empty(sum(counts))
    comm.all_gather(ours, out, algorithm=named("all_gather"), counts=counts)
    np.testing.assert_array_equal(out, parts)
    part = np.empty(counts[me])
    comm.reduce_scatter(parts * (me + 1), part, algorithm=named("reduce_scatter"), counts=counts)
    np.testing.assert_array_equal(part, me * sum(range(1, n + 1)))
    # What goes straight: nobody between knows the sizes.
    direct = {name: named(name) for name in ("gather", "scatter", "all_to_all")}
    direct = {name: {"bruck": "allpairs", "binomial": "direct"}.get(found, found) for name, found in direct.items()}
    out = np.empty(sum(counts) if me == root else 0)
    known = counts if me in (0, root) else counts[me]
    comm.gather(ours, out if me == root else None, root, algorithm=direct["gather"], counts=known)
    np.testing.assert_array_equal(out, parts if me == root else [])
    comm.scatter(parts if me == root else None, part, root, algorithm=direct["scatter"], counts=known)
    np.testing.assert_array_equal(part, me)
    for more in (0, 1, 0):
        sent = [(2 * me + other) % 4 + more for other in range(n)]
        come = [(2 * other + me) % 4 + more for other in range(n)]
        values = np.repeat(100 * me + np.arange(n), sent)
        got = np.empty(sum(come), int)
        comm.all_to_all(values, got, algorithm=direct["all_to_all"], in_counts=sent, out_counts=come)
        np.testing.assert_array_equal(got, np.repeat(100 * np.arange(n) + me, come), err_msg=f"{sent} sent")


def scans(comm, named):
    n, me = comm.world_size, comm.rank
    values = [np.arange(40) % 7 + rank for rank in range(n)]
    for op, reduce in (("sum", np.add), ("max", np.maximum), ("bxor", np.bitwise_xor)):
        out = np.full(40, -1)
        comm.scan(values[me], out, op, algorithm=named("scan"))
        np.testing.assert_array_equal(out, reduce.reduce(values[: me + 1]), err_msg=op)
        out[:] = -1
        comm.exscan(values[me], out, op, algorithm=named("exscan"))
        np.testing.assert_array_equal(out, reduce.reduce(values[:me]) if me else -1, err_msg=op)
    out = values[me].copy()
    comm.start_scan(out, out, algorithm=named("scan")).wait()
    np.testing.assert_array_equal(out, sum(values[: me + 1]))
    out = values[me].copy()
    comm.start_exscan(out, out if me else None, algorithm=named("exscan")).wait()
    np.testing.assert_array_equal(out, sum(values[:me]) if me else values[0])


def types(comm, named):
    n, me = comm.world_size, comm.rank
    for dtype in ("int8", "uint64", "bool"):
        values = [((np.arange(33) + 3 * rank) % (2 if dtype == "bool" else 5)).astype(dtype) for rank in range(n)]
        for op, reduce in INTEGER_OPS.items():
            out = np.empty(33, dtype)
            comm.all_reduce(values[me], out, op, algorithm=named("all_reduce"))
            np.testing.assert_array_equal(out, reduce.reduce(values) if n > 1 else values[0], err_msg=f"{dtype} {op}")
    for op, wanted in (("sum", any), ("prod", all)):
        out = np.empty(2, bool)
        comm.all_reduce(np.array([me > 0, True]), out, op, algorithm=named("all_reduce"))
        assert out.tolist() == [wanted(rank > 0 for rank in range(n)), True], op
    for dtype in ("complex64", "complex128"):
        values = [(np.arange(17) + 1j * (rank + 1)).astype(dtype) for rank in range(n)]
        for op, wanted in (("sum", sum(values)), ("avg", sum(values) / n), ("prod", np.prod(values, axis=0))):
            out = np.empty(17, dtype)
            comm.all_reduce(values[me], out, op, algorithm=named("all_reduce"))
            np.testing.assert_allclose(out, wanted, rtol=1e-5, err_msg=f"{dtype} {op}")
    for dtype in ("float32", "int64"):
        values, out = np.arange(9).astype(dtype), np.empty(9, dtype)
        comm.all_reduce(values, out, PremulSum(me + 2), algorithm=named("all_reduce"))
        np.testing.assert_array_equal(out, values * sum(range(2, n + 2)), err_msg=dtype)
        comm.all_reduce(values, values, PremulSum(me + 2), algorithm=named("all_reduce"))
        np.testing.assert_array_equal(out, values, err_msg=dtype)
    # Arrays that are not contiguous, in and out.
    values, out = np.arange(24.0).reshape(4, 6)[::2, ::3], np.zeros((2, 4)).T[::2]
    comm.start_all_reduce(values, out, algorithm=named("all_reduce")).wait()
    np.testing.assert_array_equal(out, values * n)
    comm.all_reduce(out, out, "max", algorithm=named("all_reduce"))
    np.testing.assert_array_equal(out, values * n)
    # In place as MPI has it: the result at the start of the buffer.
    values = np.arange(4.0 * n) + me
    before = values.copy()
    comm.reduce_scatter(values, values[:4], algorithm=named("reduce_scatter"))
    np.testing.assert_array_equal(values[:4], n * np.arange(4.0 * n)[4 * me : 4 * me + 4] + sum(range(n)))
    np.testing.assert_array_equal(values[4:], before[4:])


def barriers(comm, named):
    """Nobody's barrier ends before the last has come: rank 0, once all others have looked at theirs."""
    token = np.zeros(1)
    if comm.rank == 0:
        for peer in range(1, comm.world_size):
            comm.recv(token, peer)
        comm.start_barrier(algorithm=named("barrier")).wait()
    else:
        request = comm.start_barrier(algorithm=named("barrier"))
        assert not request.test()
        comm.send(token, 0)
        request.wait()


def check_messages(comm):
    """Tags that differ in their upper bits only, and a mailbox: any rank, any tag, less than there is room for."""
    n, me = comm.world_size, comm.rank
    right, left = (me + 1) % n, (me - 1) % n
    # All bits that the transport offers.
    tags = [1, 1 << 6, (1 << comm.transport.capabilities.lane_bits - 1) - 1]
    outs = [np.empty(1, int) for _ in tags]
    receives = [comm.start_recv(out, left, tag=tag) for out, tag in zip(outs, tags, strict=True)]
    sends = [comm.start_send(np.array([tag]), right, tag=tag) for tag in reversed(tags)]
    for request in (*receives, *sends):
        request.wait()
    assert [out[0] for out in outs] == tags
    box = comm.mailbox()
    if n == 1:
        return
    comm.barrier()
    assert box.probe() is None
    comm.barrier()
    if me:
        messages = ((2**62, 3), (5, 30_000), (6, 0))
        for request in [box.start_send(np.full(count, float(me)), 0, tag=tag) for tag, count in messages]:
            request.wait()
    else:
        out = np.zeros((4, 2)).T
        found = [box.recv(out, tag=2**62) for _ in range(1, n)]
        assert sorted(found) == [(rank, 2**62, 24) for rank in range(1, n)]
        assert out.reshape(-1).tolist() == [found[-1].source] * 3 + [0.0] * 5
        # What is received last was sent first.
        assert [box.recv(np.empty(0), peer, tag=6).source for peer in range(1, n)] == list(range(1, n))
        large = np.empty(40_000)
        for peer in range(1, n):
            request = box.start_recv(large, peer)
            request.wait()
            assert request.received == (peer, 5, 240_000), peer
            assert (large[:30_000] == peer).all(), peer
    comm.barrier()
