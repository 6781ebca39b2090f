"""One trial of `evaluate failover`: `./run evaluate rails.failover_trial TRIAL.json`, on two ranks.

A trial is a job of its own, since what dies stays dead.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from evaluation.rails.rail_faults import cut
from lanterne.collectives.communicator import Communicator
from lanterne.kernels.cpu.delay import wait_until
from lanterne.pipeline.planes.data_plane import DataPlane
from lanterne.pipeline.planes.delegate import DelegatePlane
from lanterne.pipeline.planes.inline import Inline
from lanterne.pipeline.planes.plane_makers import make_plane
from lanterne.transport.job.launch import launch
from lanterne.transport.own_python import own_python
from lanterne.transport.rails.spare import SpareTransport

# UCX takes shared memory between processes of one host; a connection that can be cut is TCP's.
UCX_TCP = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo"}
LOOPBACK = "127.0.0.1"
# A JSON object: path, how, nbytes, every_s, messages and rails.
Trial: TypeAlias = dict[str, Any]


def run_trial(trial: Trial) -> tuple[float, int]:
    """(longest gap over the usual one in seconds, wrong messages) of both ranks of a job that runs `trial`, a dict."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trial.json"
        file.write_text(json.dumps(trial))
        command = [*own_python(), "-m", "evaluation.rails.failover_trial", str(file)]
        launcher, variables = ("direct", UCX_TCP) if trial["path"] == "ucx" else ("mpi", {})
        launch(command, 2, launcher=launcher, timeout_s=120.0 + trial["messages"] * trial["every_s"], env=variables)
        found = json.loads(file.read_text())
    return found.get("stall_s", float("inf")), found.get("wrong", trial["messages"])


@contextmanager
def opened(comm: Communicator, trial: Trial) -> Iterator[tuple[DataPlane, Callable[[], object], Callable[[], object]]]:
    """(the DataPlane of the trial, what breaks its path on this rank, what tells which paths died) on two ranks."""
    how, is_silent = trial["how"], trial["how"] == "silent"
    if trial["path"] == "delegates":
        with make_plane("delegate", comm, rails=trial["rails"]) as plane:
            assert isinstance(plane, DelegatePlane)
            delegates = plane.delegates
            address = delegates.addresses[0]
            assert address is not None
            pids = [pid for pid in delegates.pids if pid is not None]
            yield plane, lambda: cut(pids, address, silently=is_silent), lambda: delegates.dropped
        return
    transport = comm.transport
    assert isinstance(transport, SpareTransport)

    def break_path() -> None:
        if trial["path"] == "mpi":
            transport.cut(1 - comm.rank, how)
        else:
            store_port = int(os.environ["LANTERNE_STORE"].rpartition(":")[2])
            cut([os.getpid()], LOOPBACK, silently=is_silent, spared_ports=(store_port,))

    yield Inline(comm), break_path, lambda: transport.moved


def exchange(comm: Communicator, trial: Trial) -> tuple[list[float], int]:
    """Send and receive a message every `every_s`, break the path half-way: (arrival times, wrong messages)."""
    peer, shape, dtype = 1 - comm.rank, (trial["nbytes"],), np.dtype(np.uint8)
    with opened(comm, trial) as (plane, break_path, dead):
        receives = [plane.receive(shape, dtype, peer) for _ in range(trial["messages"])]
        arrived_s: list[float] = []
        wrong = 0
        comm.barrier()
        begin_s = time.monotonic()
        for index, receive in enumerate(receives):
            wait_until(begin_s + index * trial["every_s"])
            out = plane.lend(shape, dtype, peer)
            out[:] = index % 251
            out[:8] = np.frombuffer(np.int64(index).tobytes(), np.uint8)
            plane.send(out, peer)
            # MPI's connections are not for us to cut: there both ends stop using it.
            if index == len(receives) // 2 and (comm.rank == 0 or trial["path"] == "mpi"):
                break_path()
            got = receive.wait()
            arrived_s.append(time.monotonic())
            # Its number, and every byte: a message that is lost, repeated or mixed with another shows here.
            wrong += int(got[:8].view(np.int64)[0] != index or not (got[8:] == index % 251).all())
            plane.release(got)
        plane.finish()
        return arrived_s, wrong + int(not dead())


def main(path: str) -> None:
    """One rank; rank 0 adds what was found to the file."""
    import lanterne

    file = Path(path)
    trial = json.loads(file.read_text())
    is_direct = trial["path"] != "delegates"
    with lanterne.init(trial["path"] if is_direct else "mpi", spare_rails=trial["rails"] if is_direct else ()) as comm:
        arrived_s, wrong = exchange(comm, trial)
        gaps_s = np.diff(arrived_s)
        every = np.empty((2, 2))
        comm.all_gather(np.array([gaps_s.max() - np.median(gaps_s), wrong]), every.reshape(-1))
        if comm.rank == 0:
            found = {"stall_s": float(every[:, 0].max()), "wrong": int(every[:, 1].sum())}
            file.write_text(json.dumps(trial | found))


if __name__ == "__main__":
    main(sys.argv[1])
