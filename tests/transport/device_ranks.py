"""Ranks with device arrays, threads on stand-ins: over nccl on streams, elsewhere through pinned memory."""

import numpy as np
from nccl_ranks import HostArray, HostRuntime, Job

import lanterne
from lanterne.collectives.auto.tuning import THREADS
from lanterne.collectives.communicator import Communicator
from lanterne.errors import Unavailable
from lanterne.kernels.arrays import require_device


def over_nccl(world_size, program, timeout_s=20.0, job=None):
    """program(comm) on every rank of a Job; what they returned, or raised."""

    def rank_main(transport):
        comm = Communicator(transport, closes=(transport,))
        comm.tuning.adopt(THREADS, "threads")
        with comm:
            return program(comm)

    return (job or Job(world_size, timeout_s)).run(rank_main, close=False)


def staged(world_size, program, timeout_s=20.0):
    """program(comm) on threads with device memory of their own, over a transport of host memory."""
    runtimes = [HostRuntime(rank) for rank in range(world_size)]

    def rank_main(comm):
        comm.transport.runtime = runtimes[comm.rank]
        try:
            return program(comm)
        except Exception as error:
            return error

    try:
        return lanterne.spawn(world_size, rank_main, timeout_s=timeout_s)
    finally:
        for runtime in runtimes:
            runtime.close()


def has_gpu():
    try:
        return require_device() > 0
    except Unavailable:
        return False


PATHS = {"nccl": over_nccl, "staged": staged}


def synchronize(comm):
    """Wait for the default stream of this rank's device."""
    runtime = comm.transport.runtime
    assert runtime.record(runtime.default).wait(20)


def values_of(rank, count, dtype):
    return ((np.arange(count) * 7 + 13 * rank) % 17 - (0 if np.dtype(dtype).kind == "u" else 8)).astype(dtype)


def on_device_and_host(comm, collective, count, dtype="float32", **options):
    """Run a collective on device arrays and on host arrays; (device result, host result)."""
    n = comm.world_size
    sizes = {"reduce_scatter": (count * n, count), "all_gather": (count, count * n), "all_to_all": (count * n,) * 2}
    sizes |= {"scatter": sizes["reduce_scatter"], "gather": sizes["all_gather"]}
    size_in, size_out = sizes.get(collective, (count, count))
    source = values_of(comm.rank, size_in, dtype)
    results = []
    for wrap in (HostArray, np.asarray):
        given, out = wrap(source.copy()), wrap(np.full(size_out, 99, dtype))
        method = getattr(comm, collective)
        if collective == "broadcast":
            method(given, **options)
            out = given
        else:
            method(given, out, **options)
        if wrap is HostArray:
            synchronize(comm)
        results.append(getattr(out, "values", out))
    return results


def same(comm, collective, count, **options):
    device, host = on_device_and_host(comm, collective, count, **options)
    np.testing.assert_array_equal(device.view(np.uint8), host.view(np.uint8))
