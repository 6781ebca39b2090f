"""`lanterne.cupyx.NCCLBackend`: CuPy's arguments, shapes and errors, here over tcp and host arrays; on devices:
tests/host_cuda and the GPU suite have the collectives that it calls."""

import json
import subprocess
import sys

import numpy as np
import pytest

from lanterne.cupyx import NCCLBackend, init_process_group


def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def calls(rank, port):
    comm = NCCLBackend(2, rank, port=port, transport="tcp")
    x, rows = np.arange(24, dtype="f").reshape(2, 3, 4), np.arange(20, dtype="F").reshape(2, 10) + rank
    out, row = np.zeros_like(x), np.zeros(10, "F")
    comm.all_reduce(x, out)
    np.testing.assert_array_equal(out, 2 * x)
    fortran, turned = np.asfortranarray(x), np.zeros((2, 3, 4), "f", order="F")
    comm.all_reduce(fortran, turned)
    np.testing.assert_array_equal(turned, 2 * x)
    comm.reduce_scatter(rows, row, 10)
    np.testing.assert_array_equal(row, 2 * np.arange(20).reshape(2, 10)[rank] + 1)
    # Of arrays that are longer than what is gathered.
    gathered = np.zeros((2, 10), "F")
    comm.all_gather(rows, gathered, 10)
    np.testing.assert_array_equal(gathered, np.arange(10) + np.array([[0], [1]]))
    for root in (0, 1):
        comm.broadcast(x, root)
        comm.reduce(x, out, root, "max")
        comm.scatter(rows, row, root)
        np.testing.assert_array_equal(row, np.arange(20).reshape(2, 10)[rank] + root, err_msg=f"root {root}")
        comm.gather(row, gathered, root)
        comm.send_recv(row, gathered[0].copy(), rank)
    comm.all_to_all(rows, gathered)
    np.testing.assert_array_equal(gathered, np.arange(20).reshape(2, 10)[[rank, rank]] + np.array([[0], [1]]))
    comm.send(x, 1) if rank == 0 else comm.recv(out, 0)
    errors = []
    for call in (
        lambda: comm.all_reduce(x.astype("h"), out.astype("h")),
        lambda: comm.all_reduce(x, out, "mean"),
        lambda: comm.all_reduce(rows, gathered, "prod"),
        lambda: comm.broadcast(x[:, :, ::2]),
        lambda: comm.broadcast([1.0]),
    ):
        try:
            call()
        except Exception as error:
            errors.append(type(error).__name__)
    comm.barrier()
    comm.stop()
    comm.stop()
    return errors


def test_two_processes_meet_by_host_and_port():
    port = str(free_port())
    ranks = [
        subprocess.Popen([sys.executable, "-P", __file__, str(rank), port], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    found = {rank: json.loads(process.communicate(timeout=60)[0]) for rank, process in enumerate(ranks)}
    assert found == {key: ["TypeError", "RuntimeError", "ValueError", "RuntimeError", "TypeError"] for key in range(2)}


@pytest.mark.parametrize(("n", "rank", "backend"), [(0, 0, "nccl"), (2, 2, "nccl"), (2, -1, "nccl"), (2, 0, "gloo")])
def test_bad_groups(n, rank, backend):
    with pytest.raises(ValueError, match="init_process_group: got"):
        init_process_group(n, rank, backend=backend)


if __name__ == "__main__":
    print(json.dumps(calls(int(sys.argv[1]), int(sys.argv[2]))))
