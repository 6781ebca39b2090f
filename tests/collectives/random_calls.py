"""Random calls of every kind, blocking and started, on a communicator; every result is checked on every rank."""

import time

import numpy as np

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "barrier")


def values(rank, count, call, dtype):
    return ((np.arange(count) * 3 + rank * 7 + call) % 11).astype(dtype)


def arguments(comm, collective, count, call, dtype, root, in_place):
    """(arguments, output, what must be in it; None where nothing must)."""
    n, me = comm.world_size, comm.rank
    part = slice(me * count, (me + 1) * count)
    if collective == "barrier":
        return (), None, None
    if collective in ("all_gather", "broadcast"):
        inputs = [values(rank, count, call, dtype) for rank in range(n)]
        if collective == "broadcast":
            return (inputs[me], root), inputs[me], inputs[root].copy()
        out = np.zeros(n * count, dtype)
        return (inputs[me], out), out, np.concatenate(inputs)
    inputs = [values(rank, n * count, call, dtype) for rank in range(n)]
    mine, total = inputs[me].copy(), sum(inputs).astype(dtype)
    if collective == "reduce_scatter":
        out = mine[part] if in_place else np.zeros(count, dtype)
        return (mine, out), out, total[part]
    out = mine if in_place else np.zeros_like(mine)
    if collective == "all_to_all":
        return (mine, out), out, np.concatenate([array[part] for array in inputs])
    if collective == "all_reduce":
        return (mine, out), out, total
    return (mine, out, root), out, total if me == root else None


def random_calls(comm, number, seed):
    """Make `number` calls, the same on all ranks, each rank with pauses of its own."""
    common, own = np.random.default_rng(seed), np.random.default_rng([seed, comm.rank])
    started = []

    def finish():
        for request, out, expected, what in started:
            request.wait()
            assert expected is None or (out == expected).all(), what
        started.clear()

    for call in range(number):
        collective = str(common.choice(COLLECTIVES))
        algorithm = str(common.choice(comm.algorithms(collective)))
        count = int(common.integers(0, common.choice([5, 300, 20_000])))
        dtype, root = str(common.choice(["int32", "float32", "int8"])), int(common.integers(comm.world_size))
        in_place = common.random() < 0.3 and algorithm != "native"
        options = {"algorithm": algorithm}
        if algorithm != "native":
            options |= {"segment_nbytes": [None, 4096][common.integers(2)], "credits": [None, 1, 2][common.integers(3)]}
        if own.random() < 0.1:
            time.sleep(own.random() * 2e-3)
        given, out, expected = arguments(comm, collective, count, call, dtype, root, in_place)
        what = (call, collective, count, dtype, in_place, options)
        if collective != "barrier" and common.random() < 0.4:
            started.append((getattr(comm, f"start_{collective}")(*given, **options), out, expected, what))
        elif collective == "barrier":
            comm.barrier(algorithm=algorithm)
        else:
            getattr(comm, collective)(*given, **options)
            assert expected is None or (out == expected).all(), what
        if len(started) > 4 or common.random() < 0.2:
            finish()
    finish()
