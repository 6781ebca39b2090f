"""One rank of a job over an MPI that says it takes device memory: stand-ins for it and for streams, a real MPI.

`mpiexec -n 3 python device_over_mpi.py REPORT CHECK ...` appends its verdicts to REPORT.RANK as JSON lines.
"""

import sys
import time

import numpy as np
from device_ranks import same
from nccl_ranks import HostArray, HostRuntime

import lanterne
from lanterne.collectives.communicator import core_of
from lanterne.errors import TransportTimeout


def check_direct(comm):
    assert comm.transport.capabilities.device_memory
    assert core_of(comm).device_side(HostArray(np.zeros(1))).transport is comm.transport


def check_collectives(comm):
    for name in ("ring", "rhd", "allpairs", "late_join", "tree"):
        for count in (0, 1, 7, 300_000):
            same(comm, "all_reduce", count, algorithm=name)
    for collective in ("reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all"):
        same(comm, collective, 5003)


def check_order_on_the_users_stream(comm):
    runtime = comm.transport.runtime
    stream = runtime.new_stream()
    x, out, seen = HostArray(np.zeros(100, np.float32)), HostArray(np.zeros(100, np.float32)), []
    for turn in range(2):
        stream.put(lambda: time.sleep(0.05 * (comm.rank + 1)))
        stream.put(lambda: x.values.fill(comm.rank + 1))
        comm.all_reduce(x, out, stream=stream, algorithm="ring")
        stream.put(lambda: seen.append(out.values.copy()))
        assert runtime.record(stream).wait(20), turn
        assert set(seen[-1].tolist()) == {6.0}, (turn, seen[-1])


def check_messages_wait_for_the_users_stream(comm):
    """MPI reads the memory when the message is posted: what is queued before has to be done by then."""
    runtime, me, n = comm.transport.runtime, comm.rank, comm.world_size
    out, into = HostArray(np.zeros(1000, np.float32)), HostArray(np.zeros(1000, np.float32))
    runtime.default.put(lambda: time.sleep(0.1))
    runtime.default.put(lambda: out.values.fill(me + 1))
    receive = comm.start_recv(into, (me - 1) % n)
    comm.send(out, (me + 1) % n)
    receive.wait()
    assert set(into.values.tolist()) == {(me - 1) % n + 1.0}


def check_a_stream_that_hangs(comm):
    runtime = comm.transport.runtime
    comm.transport.timeout_s = 0.2
    stream = runtime.new_stream()
    stream.put(lambda: runtime.closing.wait(20))
    try:
        comm.send(HostArray(np.zeros(8)), (comm.rank + 1) % comm.world_size, stream=stream)
    except TransportTimeout as error:
        assert "a message on mpi: not done within 0.2 s" in str(error), error
    else:
        raise AssertionError("it was sent")


CHECKS = [
    check_direct,
    check_collectives,
    check_order_on_the_users_stream,
    check_messages_wait_for_the_users_stream,
    check_a_stream_that_hangs,
]


def main(report, *checks):
    from verdicts import write_verdicts

    with lanterne.init(transport="mpi", timeout_s=60.0) as comm:
        comm.transport.runtime = HostRuntime(comm.rank)
        failed = write_verdicts(report, [globals()[check] for check in checks], comm)
        comm.transport.runtime.close()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
