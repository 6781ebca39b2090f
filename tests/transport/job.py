"""A rank for test_launch.py and test_bootstrap.py: joins its job, says so, and does what its arguments say.

    job.py [--mpi] [--child] ACTION

--mpi: with an MPI receive posted that never completes; --child: with a process of its own in another session.
ACTION, of rank 1 only: `kill`, `exit` (code 5), `raise`; of all ranks: `report` (its surroundings, as JSON), `wait`
(for a death), `finalize` (all end in order, but rank 1 cannot finalize MPI).
"""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from lanterne.errors import PeerFailed
from lanterne.transport.job.bootstrap import connect
from lanterne.transport.mpi import over_mpi as mpi
from lanterne.transport.mpi.library import unlink_segments
from lanterne.transport.registry import open_transport

EXIT_OF_RANK_1 = 5
EXIT_OF_SURVIVORS = 7


def say(text):
    # In one write: the ranks share one pipe.
    os.write(1, f"{text}\n".encode())


def report(group):
    payloads = group.exchange("ranks", b"%d" % group.rank)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS")
    say(
        json.dumps(
            {
                "rank": group.rank,
                "world_size": group.world_size,
                "payloads": [payload.decode() for payload in payloads],
                "one_host": len(set(group.hosts)) == 1 and len(group.hosts) == group.world_size,
                "variables": {name: os.environ.get(name) for name in names},
            }
        )
    )


def die(how):
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        os._exit(EXIT_OF_RANK_1)
    raise RuntimeError("rank 1 fails")


def main(arguments):
    test = lambda: False  # noqa: E731
    if "--mpi" in arguments:
        import numpy as np
        from mpi4py import MPI

        test = MPI.COMM_WORLD.Irecv(np.zeros(1), source=1).Test
    group = connect(60)
    if "--child" in arguments:
        subprocess.Popen(["sleep", "600"], start_new_session=True)
    group.barrier()
    # As the transport does; who dies would leave them for good.
    unlink_segments()
    action = arguments[-1]
    if action == "report":
        report(group)
        group.close()
        return
    if action == "finalize":
        open_transport("mpi", group)
        group.barrier("opened")
        if re.search(r"/mpich_shm_\S+$", Path("/proc/self/maps").read_text(), re.MULTILINE):
            say("shared memory has a name still, and will keep it if the job is killed")
        if group.rank == 1:
            mpi.skip_finalize()
        return
    say(f"ready {group.rank}")
    if group.rank == 1 and action != "wait":
        die(action)
    try:
        while not test():
            os.sched_yield()
            group.check_peers()
    except PeerFailed as error:
        say(f"rank {group.rank} sees: {error}")
        os._exit(EXIT_OF_SURVIVORS)


main(sys.argv[1:])
