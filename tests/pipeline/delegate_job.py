"""A rank for test_delegate_deaths.py: sends and receives through delegates until something dies, and tells."""

import os
import sys
import time

import numpy as np

import lanterne
from lanterne.collectives.communicator import core_of
from lanterne.errors import LanterneError
from lanterne.pipeline.planes.plane_makers import make_plane

SHAPE, DTYPE = (1 << 18,), np.dtype(np.uint8)


def say(text):
    os.write(1, f"{text}\n".encode())


def main():
    comm = lanterne.init(timeout_s=30)
    plane = make_plane("delegate", comm, rails=sys.argv[1:])
    peers = [peer for peer in (comm.rank - 1, comm.rank + 1) if 0 <= peer < comm.world_size]
    say(f"ready {comm.rank} {os.getpid()} {' '.join(map(str, plane.delegates.pids))}")
    try:
        while True:
            receives = [plane.receive(SHAPE, DTYPE, peer) for peer in peers]
            for peer in peers:
                plane.send(plane.lend(SHAPE, DTYPE, peer), peer)
            for receive in receives:
                plane.release(receive.wait())
            plane.finish()
            time.sleep(0.005)
    except LanterneError as error:
        say(f"rank {comm.rank} sees: {error}")
        plane.fail(error)
        core_of(comm).fail(error)
        os._exit(7)


main()
