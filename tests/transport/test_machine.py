"""Clock, naps and sockets come from the Machine that is handed in, and one function waits; nothing goes around them.

Of transport/ and collectives/: what simulated ranks run. failslow/ and pipeline/ are outside: they time and end real
processes (detectors, trainers, planners with a time limit), and no simulated rank runs them. If one did, the guard of
the simulated machine would name the line (`Escaped`).
"""

import ast
import select
from pathlib import Path

import pytest

import lanterne
from lanterne.transport.machine import Machine

PACKAGE = Path(lanterne.__file__).parent
FOLDERS = "transport", "collectives"
FILES = sorted(path.relative_to(PACKAGE) for folder in FOLDERS for path in (PACKAGE / folder).rglob("*.py"))
# What only a Machine may use; None: all of the module.
KEPT = {
    "time": None,
    "select": {"select", "poll", "epoll"},
    "selectors": {"DefaultSelector", "EpollSelector", "PollSelector", "SelectSelector"},
    "os": {"sched_yield", "eventfd", "eventfd_read", "eventfd_write"},
    "threading": {"Thread", "Timer", "Condition", "Event", "Semaphore", "Barrier"},
    "socket": {"create_connection", "create_server", "socketpair", "fromfd"},
}
# Who does so all the same, and why.
EXCEPTIONS = {
    "transport/machine.py": "it is the machine",
    "transport/job/bootstrap.py": "asks the kernel for an interface's address, on a socket that sends nothing",
    "transport/job/guard.py": "signals come to it on a pair of sockets inside its process",
    "transport/rails/delegate_handle.py": "a pair of sockets joins it to the process that it starts",
    "transport/rails/delegate_process.py": "its end of that pair",
    "transport/nccl/binding.py": "NCCL blocks, in a thread of its own",
    "transport/nccl/watchdog.py": "its thread looks while NCCL blocks",
    "collectives/algorithms/late/any_arrival.py": "its thread loads a compiler, and waits for nothing",
    "collectives/jobs.py": "the ranks of spawn are threads",
    "collectives/auto/learn.py": "says on which day this machine was measured",
    "collectives/auto/trials.py": "measures how fast this machine is",
    "collectives/auto/load_meter.py": "measures how busy this machine is",
    "collectives/auto/slow_nics.py": "measures how fast a NIC is",
}
# Loops that pause and are no waits for one thing.
LOOPS = {
    ("transport/waiting.py", "wait"): "it is the wait",
    ("transport/store/server.py", "run"): "serves whoever comes",
    ("transport/store/client.py", "_connect"): "each try blocks by itself",
    ("transport/rails/rail.py", "_connect_by"): "each try blocks by itself",
    ("transport/store/follow.py", "begin"): "each try blocks by itself",
    ("transport/store/follow.py", "follow"): "each try blocks by itself",
    ("transport/store/decision_log.py", "decide"): "each try blocks by itself",
    ("transport/job/bootstrap.py", "_start_store"): "each try blocks by itself",
    ("transport/job/bootstrap.py", "_resolve"): "each try blocks by itself",
    ("collectives/execute/background.py", "_run"): "advances whatever calls there are",
    ("transport/job/launch.py", "_stop"): "processes of the kernel end",
    ("transport/job/launch.py", "_end"): "processes of the kernel end",
}
PAUSING = {"pause", "give_way", "sleep"}


def escapes(tree):
    """Lines of `tree` that use what only a Machine may."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in KEPT:
            yield node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in KEPT:
            names = KEPT[node.value.id]
            if names is None or node.attr in names:
                yield node.lineno
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("socket.socket",):
            yield node.lineno


def pausing_loops(tree):
    """Names of the functions of `tree` with a loop that pauses."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            loops = [loop for loop in ast.walk(function) if isinstance(loop, ast.While)]
            calls = [call.func for loop in loops for call in ast.walk(loop) if isinstance(call, ast.Call)]
            if any(isinstance(call, ast.Attribute) and call.attr in PAUSING for call in calls):
                yield function.name


def read(path):
    return ast.parse((PACKAGE / path).read_text())


@pytest.mark.parametrize("path", [path for path in FILES if str(path) not in EXCEPTIONS], ids=str)
def test_clock_and_network_are_handed_in(path):
    assert list(escapes(read(path))) == []


@pytest.mark.parametrize("path", EXCEPTIONS)
def test_exceptions_are_needed(path):
    assert list(escapes(read(path)))


def test_one_function_waits():
    assert {(str(path), name) for path in FILES for name in pausing_loops(read(path))} == set(LOOPS)


@pytest.mark.parametrize(
    "line",
    [
        *("time.monotonic()", "from time import sleep", "now = time.time", "select.select([], [], [])"),
        *("select.poll()", "selectors.DefaultSelector()", "os.sched_yield()", "socket.create_connection(a)"),
        *("socket.socket()", "threading.Thread(target=g)", "os.eventfd(0)"),
    ],
)
def test_the_walk_sees_every_escape(line):
    assert list(escapes(ast.parse(f"def f():\n    {line}\n"))) == [2]


def test_the_walk_sees_a_loop_that_pauses():
    assert list(pausing_loops(ast.parse("def f():\n while True:\n  machine.sleep(1)\ndef g():\n sleep(1)\n"))) == ["f"]


def test_a_deep_poller_is_readable_while_one_of_its_own_is_ready():
    machine = Machine()
    poller, outer, wakeup = machine.deep_poller(), machine.poller(), machine.wakeup()
    outer.register(poller, select.POLLIN)
    poller.register(wakeup, select.POLLIN)
    try:
        assert (poller.poll(0), outer.poll(0)) == ([], [])
        wakeup.set()
        assert (poller.poll(0), outer.poll(None)) == ([(wakeup.fileno(), select.POLLIN)], [(poller.fileno(), 1)])
        poller.modify(wakeup, select.POLLOUT)
        assert poller.poll(1.0) == [(wakeup.fileno(), select.POLLOUT)]
        poller.unregister(wakeup)
        assert (poller.poll(1.0), outer.poll(0)) == ([], [])
    finally:
        poller.close()
        wakeup.close()
