"""Finding the processes of a test: each test marks its processes' environment, which all that they start inherit."""

import os
import random
import socket
import time
import uuid

MARK = "LANTERNE_TEST_MARK"
PATIENCE_S = 30.0


def new_mark():
    return uuid.uuid4().hex


def marked(mark, word=""):
    """The pids of the living processes with this mark whose command line contains `word`."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as environ, open(f"/proc/{name}/cmdline", "rb") as cmdline:
                if wanted in environ.read().split(b"\0") and word.encode() in cmdline.read().replace(b"\0", b" "):
                    found.append(int(name))
        except OSError:
            continue
    return found


def free_port():
    """A port that is free, as is the next one, below those that the system hands out to anybody."""
    while True:
        port = random.randrange(10000, 30000)
        try:
            for taken in (port, port + 1):
                socket.create_server(("127.0.0.1", taken)).close()
        except OSError:
            continue
        return port


def wait_until(condition):
    """`condition()`'s first true value; its last value once patience has ended."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return value


def assert_none_left(mark):
    assert wait_until(lambda: not marked(mark)), marked(mark)
