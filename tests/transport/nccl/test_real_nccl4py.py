"""Our calls are those that the real nccl4py takes, over a libnccl that says what it was asked.

Needs nccl4py, which the tests' lock has, and a C compiler.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_compilers import require_compilers

STUB = Path(__file__).with_name("libnccl_stub.c")
PROGRAM = """
from lanterne.errors import TransportError
from lanterne.transport.nccl.nccl4py import load_nccl4py, versions_of
from lanterne.transport.nccl.binding import make_communicator
library = load_nccl4py()
assert library.get_version() == 23203
found = versions_of(library, 13000)
assert found.nccl == 23203 and found.header and found.binding.startswith("nccl4py "), found
comm = make_communicator(library, 3, library.get_unique_id(), 1, 5.0)
library.groupStart()
comm.send(4096, 10, 1, 2, 99)
comm.recv(8192, 20, 1, 0, 99)
library.groupEnd()
comm.allReduce(4096, 8192, 7, 7, 0, 99)
comm.check_async_error()
growth_id = comm.growth_id()
larger = comm.grow(4, growth_id, 5.0)
larger.allReduce(4096, 8192, 7, 7, 0, 99)
larger.destroy()
library.come_in(4, growth_id, 3, 5.0).destroy()
try:
    comm.allReduce(4096, 8192, 13, 7, 0, 99)
except TransportError as error:
    assert str(error) == "NCCL: remote process exited: a cable", error
comm.revoke()
smaller = comm.shrink([2], 5.0)
smaller.allReduce(4096, 8192, 7, 7, 0, 99)
smaller.destroy()
comm.abort()
comm.abort()
"""


def test_the_real_binding_takes_our_calls(tmp_path):
    require_compilers("nccl.core")
    compiler = shutil.which("cc") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path / "libnccl.so.2"
    subprocess.run([compiler, "-xc", "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", STUB, "-o", library], check=True)
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", PROGRAM]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    grows = "growth_id grow all_reduce finalize destroy come_in finalize destroy"
    expected = f"init send recv group all_reduce {grows} all_reduce revoke shrink all_reduce finalize destroy abort"
    assert result.stdout.split() == expected.split()
