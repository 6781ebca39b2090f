"""A rank is killed in the middle of a run, and the others go on: four processes, started here as torchrun would."""

import os
import secrets
import signal
import socket
import subprocess
import sys

import numpy as np

import lanterne

STEPS, RANKS, VICTIM = 30, 4, 2


def main() -> None:
    """One rank."""
    comm = lanterne.init(transport="tcp", timeout_s=20)
    gradient, total = np.full(1000, 1.0, np.float32), np.empty(1000, np.float32)
    step = 0
    while step < STEPS:
        if step == 10 and comm.world_size == RANKS and comm.rank == VICTIM:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            comm.all_reduce(gradient, total)
        except lanterne.TransportError as error:
            comm = comm.shrink()
            print(f"step {step}: {error}; rank {comm.rank} of {comm.world_size} goes on", flush=True)
            continue  # The step is done again, by those that there are.
        assert (total == comm.world_size).all()
        step += 1
    comm.close()


def start() -> list[int]:
    """The exit codes of all ranks."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    job = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    job["LANTERNE_TOKEN"] = secrets.token_hex(16)
    ranks = [
        subprocess.Popen([sys.executable, __file__], env=os.environ | job | {"RANK": str(rank)})
        for rank in range(RANKS)
    ]
    return [rank.wait(60) for rank in ranks]


if "RANK" in os.environ:
    main()
else:
    codes = start()
    print("exit codes", codes)
    assert codes == [-signal.SIGKILL if rank == VICTIM else 0 for rank in range(RANKS)]
