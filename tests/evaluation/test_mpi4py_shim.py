"""The shim that mpi4py's own tests run over does what MPI says where lanterne has no such verb."""

import subprocess
import sys

PROGRAM = """
import numpy as np
import lanterne
from evaluation.mpi4py_suite.shim import ShimComm

def program(comm):
    shim = ShimComm(comm)
    empty = np.empty(0)
    request = shim.Issend(empty, 0, 123)
    shim.Probe()
    early = request.Test()
    shim.Recv(empty, 0, 123)
    request.Wait()
    return early

print(lanterne.spawn(1, program, timeout_s=20.0)[0])
"""


VERDICTS = """
import unittest
from evaluation.mpi4py_suite.buffers import NoVerb
from evaluation.mpi4py_suite.score import _joined, _verdict

class Suite(unittest.TestCase):
    def right(self): pass
    def wrong(self): self.assertEqual(1, 2)
    def absent(self): raise NoVerb("Iscan")

found = {name: _verdict(Suite(name), name) for name in ("right", "wrong", "absent")}
print(*(verdict.state for verdict in found.values()))
print(*(verdict.state for verdict in _joined([[found["right"]] * 3, [*found.values()]])))
"""


def test_a_call_that_gives_something_else_fails_its_cell():
    done = subprocess.run(
        [sys.executable, "-P", "-c", VERDICTS], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == 2 * "ok fail no verb\n", done.stderr


def test_a_synchronous_send_waits_until_it_is_received():
    # A process of its own, since to import mpi4py is to start MPI.
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "False\n", done.stderr
