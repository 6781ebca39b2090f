"""What is recorded of each library's calls: mpi4py itself, torch.distributed and cupy.cuda.nccl by stand-ins.

The stand-ins have the modules' names, their layout and the signatures that the adapters rely on, and nothing else.
"""

import importlib.util
import os
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import lanterne
from lanterne.errors import InputError
from lanterne.failslow.operate.thresholds import Thresholds
from lanterne.failslow.record.call_ring import RingReader
from lanterne.failslow.record.job_log import JobLog
from lanterne.failslow.record.recorder import INTERNAL

ROOT = Path(__file__).resolve().parents[3]
PREAMBLE = "from lanterne.failslow.record.adapters import start; start()\n"

TORCH = {
    "torch/__init__.py": """
class autograd:
    class Variable:
        class _execution_engine:
            queued = []
            def queue_callback(call): autograd.Variable._execution_engine.queued.append(call)
def is_grad_enabled(): return True
""",
    "torch/distributed/__init__.py": "from .distributed_c10d import *\n",
    "torch/distributed/distributed_c10d.py": """
__all__ = ["all_reduce", "all_gather_object", "send", "get_rank", "get_world_size", "get_backend"]
__all__ += ["get_process_group_ranks"]
class Group:
    pass
def get_rank(group=None): return 1
def get_world_size(group=None): return 4
def get_process_group_ranks(group): return [1, 3]
def get_backend(group=None): return "gloo" if group is None else getattr(group, "backend", "mpi")
def all_reduce(tensor, op="sum", group=None, async_op=False):
    if tensor is None: raise ValueError("no tensor")
    return "work"
def all_gather_object(object_list, obj, group=None): return all_reduce(obj)
def send(tensor, dst=None, group=None, tag=0): pass
""",
    "torch/nn/__init__.py": "",
    "torch/nn/parallel/__init__.py": "from .distributed import DistributedDataParallel\n",
    "torch/nn/parallel/distributed.py": """
import torch
import torch.distributed as dist
class Group:
    backend = "nccl"
    def size(self): return 4
class Tensor:
    requires_grad = True
    hooks = ()
    def register_hook(self, hook): self.hooks = *self.hooks, hook
    def backward(self):
        queued = torch.autograd.Variable._execution_engine.queued
        for hook in self.hooks: hook("gradient")
        while queued: queued.pop(0)()
def _find_tensors(found): return found if isinstance(found, list) else []
class DistributedDataParallel:
    process_group, require_backward_grad_sync = Group(), True
    def forward(self, x): return x
    __call__ = lambda self, x: self.forward(x)
""",
}
# As CuPy's: `__init__` makes the communicator, and cupy.cuda.nccl takes its names from cupy_backends.
CUPY = {
    "cupy/__init__.py": "",
    "cupy/cuda/__init__.py": "",
    "cupy/cuda/nccl.py": "from cupy_backends.cuda.libs.nccl import *",
    "cupy_backends/__init__.py": "",
    "cupy_backends/cuda/__init__.py": "",
    "cupy_backends/cuda/libs/__init__.py": "",
    "cupy_backends/cuda/libs/nccl.py": """
NCCL_FLOAT32, NCCL_SUM = 7, 0
class NcclCommunicator:
    comm = 0
    def __init__(self, ndev, commId, rank, config=None): self.comm = 1
    def allReduce(self, sendbuf, recvbuf, count, datatype, op, stream): return self.comm and "queued"
    def bcast(self, buff, count, datatype, root, stream): pass
    def send(self, sendbuf, count, datatype, peer, stream): pass
    def rank_id(self): return 0
""",
}


def calls_of(tmp_path, program, modules=(), environment=None):
    """{rank: Calls without their times} of a program that runs with the recorder."""
    for name, text in dict(modules).items():
        path = tmp_path / "path" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    logs = tmp_path / "logs"
    logs.mkdir()
    path = os.pathsep.join([str(ROOT), str(tmp_path / "path")])
    variables = {**os.environ, "LANTERNE_WATCH": str(logs), "PYTHONPATH": path, **(environment or {})}
    command = [sys.executable, "-c", PREAMBLE + program]
    result = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    found = {}
    for file in logs.glob("*.calls"):
        reader = RingReader(file)
        assert reader.ended, file
        calls = reader.take()
        assert all(call.start_s <= call.end_s for call in calls), file
        found[reader.header["rank"]] = [(call.name, call.ranks, call.communicator, call.nbytes) for call in calls]
    return found


def paths_of(tmp_path):
    """Over what the calls went, as the job's report has it."""
    job = JobLog(tmp_path / "logs")
    job.poll()
    return job.report()["paths"]


def test_mpi4py(tmp_path):
    program = """
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
assert isinstance(comm, MPI.Intracomm) and type(comm).__name__ == "Intracomm"
x, y = np.ones(10, np.float32), np.empty(10, np.float32)
comm.Allreduce(x, y)
assert (y == 1).all()
comm.Bcast([x, MPI.FLOAT], root=0)
assert comm.allreduce(2) == 2
part = comm.Split(0, 0)
part.Barrier()
part.Dup().Allgather(x, np.empty(10, np.float32))
comm.Create_cart([1]).Barrier()
comm.Sendrecv(x, 0, recvbuf=y, source=0)
request = comm.Irecv(y, 0)
comm.Send(x, 0)
request.Wait()
"""
    (calls,) = calls_of(tmp_path, program).values()
    names = [name for name, *_ in calls]
    expected = ["Allreduce", "Bcast", "allreduce", "Barrier", "Allgather", "Barrier", "Sendrecv", "Irecv", "Send"]
    assert names == expected
    assert len({number for _, _, number, _ in calls}) == 1
    assert [nbytes for *_, nbytes in calls] == [40, 40, -1, -1, 40, -1, 40, 40, 40]
    assert [ranks for _, ranks, _, _ in calls] == [1] * 6 + [0] * 3
    assert paths_of(tmp_path) == ["mpi4py over MPI"]


def test_torch_stand_in(tmp_path):
    program = """
import torch.distributed as dist
from torch.distributed import all_reduce
from torch.nn.parallel import DistributedDataParallel
class Tensor:
    nbytes = 64
group = dist.distributed_c10d.Group()
assert dist.all_reduce(Tensor()) == "work"
all_reduce(Tensor(), "sum", group)
dist.all_reduce(Tensor(), group=group)
try:
    dist.all_reduce(None)
except ValueError as error:
    assert str(error) == "no tensor"
dist.all_gather_object([], Tensor())
dist.send(Tensor(), 3)
model = DistributedDataParallel()
assert model("input") == "input"
model.require_backward_grad_sync = False
model("input")
model.require_backward_grad_sync = True
from torch.nn.parallel.distributed import Tensor
one = Tensor()
for _ in range(2):
    assert model([one, one]) == [one, one]
    one.backward()
    one.hooks = ()
"""
    calls = calls_of(tmp_path, program, TORCH, {"RANK": "1"})[1]
    assert [(name, ranks, nbytes) for name, ranks, _, nbytes in calls] == [
        ("all_reduce", 4, 64),
        ("all_reduce", 2, 64),
        ("all_reduce", 2, 64),
        ("all_reduce", 4, -1),
        ("all_gather_object", 4, 64),
        ("send", 0, 64),
        ("DistributedDataParallel.forward", 4, -1),
        ("DistributedDataParallel.forward", 0, -1),
        # Known by its backward from the second on, which begins once, however many of its outputs have a gradient.
        ("DistributedDataParallel.forward", 4, -1),
        ("DistributedDataParallel.backward", 4, 0),
        ("DistributedDataParallel.forward", 1, -1),
        ("DistributedDataParallel.backward", 4, 0),
    ]
    numbers = [number for _, _, number, _ in calls]
    assert numbers[0] == numbers[3] == 0 != numbers[1] == numbers[2]
    assert paths_of(tmp_path) == [f"torch.distributed over {name}" for name in ("gloo", "mpi", "nccl")]


def test_nccl_stand_in(tmp_path):
    program = """
from cupy.cuda import nccl
comm = nccl.NcclCommunicator(2, commId=b"123", rank=1, config=None)
assert comm.allReduce(0, 0, 100, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, 0) == "queued"
comm.bcast(0, 7, 8, 0, 0)
comm.send(0, 5, 6, 0, 0)
assert comm.rank_id() == 0 and isinstance(comm, nccl.NcclCommunicator)
"""
    calls = calls_of(tmp_path, program, CUPY, {"RANK": "3"})[3]
    assert [(name, ranks, nbytes) for name, ranks, _, nbytes in calls] == [
        ("allReduce", 2, 400),
        ("bcast", 2, 56),
        ("send", 0, 10),
    ]
    assert paths_of(tmp_path) == ["cupy.cuda.nccl over NCCL"]


def test_lanterne_records_its_calls_and_not_what_they_send(tmp_path):
    program = """
import numpy as np, lanterne
def main(comm):
    x = np.ones(100, np.float32)
    comm.all_reduce(x, x)
    comm.start_broadcast(x).wait()
    half = comm.split(comm.rank % 2)
    half.barrier()
lanterne.spawn(4, main)
"""
    found = calls_of(tmp_path, program)
    assert sorted(found) == [0, 1, 2, 3]
    for calls in found.values():
        assert [(name, ranks, nbytes) for name, ranks, _, nbytes in calls] == [
            ("all_reduce", 4, 400),
            ("start_broadcast", 4, 400),
            ("barrier", 2, -1),
        ], calls
    assert found[0][2] == found[2][2] != found[1][2] == found[3][2]
    assert paths_of(tmp_path) == ["lanterne over local"]


@pytest.mark.parametrize("folder", ["gone", "read-only"])
def test_no_folder_harms_nobody(tmp_path, folder):
    logs = tmp_path / "logs"
    logs.mkdir()
    program = f"""{PREAMBLE}
import os, shutil
from mpi4py import MPI
shutil.rmtree({str(logs)!r}) if {folder == "gone"} else os.chmod({str(logs)!r}, 0o500)
for _ in range(3):
    MPI.COMM_WORLD.Barrier()
print("fine")"""
    variables = {**os.environ, "LANTERNE_WATCH": str(logs), "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-c", program], env=variables, capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.returncode, result.stdout.strip(), result.stderr) == (0, "fine", "")


def test_a_module_that_is_not_as_expected_is_left_as_it_is(tmp_path):
    modules = {"cupy/__init__.py": "", "cupy/cuda/__init__.py": "", "cupy/cuda/nccl.py": "value = 3\n"}
    program = "from cupy.cuda import nccl\nassert nccl.value == 3 and nccl.__spec__.loader is nccl.__loader__\n"
    assert calls_of(tmp_path, program, modules) == {}


def test_a_forked_child_does_not_write_into_its_parents_log(tmp_path):
    program = """
import importlib.util
import os
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
if os.fork() == 0:
    from lanterne.failslow.record.adapters import Finder
    import sys
    finder = next(f for f in sys.meta_path if isinstance(f, Finder))
    finder._recorder.channel(0, "child", 1, 0)(0, 0.0, 0.0)
    os._exit(0)
os.wait()
"""
    assert [name for name, *_ in calls_of(tmp_path, program)[0]] == ["Barrier"]


def test_what_is_internal_exists():
    """Calls of these modules are not recorded: a module that has moved would be."""
    assert all(importlib.util.find_spec(name.rstrip(".")) for name in INTERNAL)


# -- lanterne.watch


def test_watch_gives_all_ranks_one_report():
    def main(comm):
        import numpy as np

        x = np.ones(64, np.float32)
        comm.all_reduce(x, x)
        with lanterne.watch(comm) as watch:
            assert (watch.report is None) == (comm.rank != 0)
            assert "all_reduce" in vars(comm)
            for _ in range(20):
                comm.all_reduce(x, x, op="max")
                comm.barrier()
        comm.all_reduce(x, x)
        assert "all_reduce" not in vars(comm)
        return watch.report

    reports = lanterne.spawn(3, main)
    assert all(report == reports[0] for report in reports)
    assert reports[0]["reported"] == [0, 1, 2]
    assert reports[0]["arrivals"]["matched"] == 40 == reports[0]["arrivals"]["ranks"][2]["calls"]
    assert {call["name"]: call["count"] for call in reports[0]["calls"]} == {"all_reduce": 20, "barrier": 20}


def test_blocks_leave_nothing_behind():
    def main(comm):
        before = None
        for i in range(6):
            with lanterne.watch(comm):
                comm.barrier()
            if i == 1:
                before = Path("/proc/self/maps").read_text().count("lanterne-watch-")
        return before, Path("/proc/self/maps").read_text().count("lanterne-watch-")

    ((before, after),) = lanterne.spawn(1, main)
    assert after <= before


def test_an_exception_passes_and_leaves_the_calls_as_they_were():
    seen = []

    def main(comm):
        watch = lanterne.watch(comm)
        with watch:
            assert "barrier" in vars(comm)
            comm.barrier()
            seen.append((comm, watch))
            raise ZeroDivisionError("the program's own")

    with pytest.raises(ZeroDivisionError, match="the program's own"):
        lanterne.spawn(1, main)
    comm, watch = seen[0]
    assert "barrier" not in vars(comm)
    assert watch.report["reported"] == [0]


def test_what_on_notice_raises_stays_in_its_thread(tmp_path, caplog):
    def main(comm):
        from call_logs import job_calls, write_logs

        def on_notice(notice):
            raise RuntimeError("in the callback")

        with lanterne.watch(comm, on_notice=on_notice, folder=tmp_path) as watch:
            write_logs(tmp_path, {0: job_calls(1, 120, slow=(60, 90, 20e-3))[0]})
        return watch.report

    (report,) = lanterne.spawn(1, main)
    assert len(report["incidents"]) == 1
    assert "on_notice failed" in caplog.text


def test_a_communicators_page_and_thresholds(tmp_path, caplog):
    taken = socket.create_server(("127.0.0.1", 0))

    def main(comm):
        with lanterne.watch(comm, listen="127.0.0.1:0", history=str(tmp_path / "hosts.jsonl")) as watch:
            comm.barrier()
            found = ""
            while comm.rank == 0 and "lanterne_reported{" not in found:
                found = urllib.request.urlopen(f"{watch.server.url}metrics", timeout=20).read().decode()
            watch.thresholds = Thresholds(patience_s=3.0)
            comm.barrier()
        assert watch.server is None
        # A port that is taken ends no job.
        with lanterne.watch(comm, listen=f"127.0.0.1:{taken.getsockname()[1]}") as watch:
            comm.barrier()
            assert watch.server is None
        return found

    with taken:
        found, _ = lanterne.spawn(2, main)
    assert "lanterne_calls_begun_early_total{" in found and "Address already in use" in caplog.text
    assert '"what": "job"' in (tmp_path / "hosts.jsonl").read_text()


@pytest.mark.parametrize("option", [{"listen": "x"}])
def test_no_address_and_no_receiver(option):
    def main(comm):
        lanterne.watch(comm, **option)

    with pytest.raises(InputError, match="got 'x'"):
        lanterne.spawn(2, main)
