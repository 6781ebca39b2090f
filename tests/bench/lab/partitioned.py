"""A program whose ranks go on when hosts are cut off: says how long a call was missing, and with whom it ended."""

import atexit
import os
import subprocess
import sys
import time
from urllib.parse import urlsplit

import numpy as np

import lanterne

redis = urlsplit(os.environ.get("LANTERNE_STORE", ""))
if redis.port and int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
    words = [
        "redis-server",
        "--port",
        str(redis.port),
        "--bind",
        redis.hostname,
        "--protected-mode",
        "no",
        "--save",
        "",
    ]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    atexit.register(server.kill)
time.sleep(float(sys.argv[1]))  # as on a machine that starts slowly
comm = lanterne.init("tcp", timeout_s=12)
size, steps, missing_s, last_s = comm.world_size, 0, 0.0, time.monotonic()
out = np.empty(1000)
while steps < 20:
    try:
        comm.all_reduce(np.full(1000, 1.0), out)
        assert (out == comm.world_size).all()
        missing_s, last_s = max(missing_s, time.monotonic() - last_s), time.monotonic()
        steps += comm.world_size < size
    except lanterne.TransportError:
        try:
            comm = comm.shrink()
        except lanterne.TransportError as error:
            ended_s = time.monotonic() - last_s
            os.write(1, f"host {os.environ['RANK']} ends after {ended_s:.2f} s: {error}\n".encode())
            raise SystemExit(5) from None
    time.sleep(0.05)
os.write(1, f"host {os.environ['RANK']} goes on in {comm.ranks} after {missing_s:.2f} s\n".encode())
comm.close()
if redis.port:
    time.sleep(3)  # The others say goodbye at a store that writes to the Redis of this host.
