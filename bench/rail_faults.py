"""Breaks the rails of delegates from outside, as a network card that dies would; for experiments and tests. Linux."""

import ctypes
import os
import socket
import struct
from contextlib import suppress

from ..errors import Unavailable
from ..transport.rail import MEMORY

PIDFD_GETFD = 438
SO_ATTACH_FILTER = 26
# A packet filter of one instruction: return 0, nothing passes.
NOTHING_PASSES = struct.pack("HBBI", 0x06, 0, 0, 0)


def cut(pids, rail, silently=False):
    """Break every connection of a rail that the processes `pids` hold; returns how many.

    Args:
        rail: "memory" or the address of a TCP rail.
        silently: packets are dropped from now on, and nobody is told; else the connections are reset.

    Raises:
        Unavailable: this system does not let us (it takes the right to trace those processes).
    """
    count = 0
    for pid in pids:
        for sock in _sockets(pid):
            with sock, suppress(OSError):
                if _is_of(sock, rail):
                    count += 1
                    _mute(sock) if silently else sock.shutdown(socket.SHUT_RDWR)
    return count


def _is_of(sock, rail):
    if sock.type != socket.SOCK_STREAM:
        return False
    if sock.family == socket.AF_UNIX:
        return rail == MEMORY
    return rail in (sock.getsockname()[0], sock.getpeername()[0])


def _mute(sock):
    code = ctypes.create_string_buffer(NOTHING_PASSES, len(NOTHING_PASSES))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HxxxxxxP", 1, ctypes.addressof(code)))


def _sockets(pid):
    """Copies of the sockets that process `pid` holds."""
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = os.pidfd_open(pid)
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):
                if not os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
                    continue
                fd = libc.syscall(PIDFD_GETFD, pidfd, int(name), 0)
                if fd < 0:
                    raise Unavailable(f"cannot reach the sockets of process {pid}: {os.strerror(ctypes.get_errno())}")
                yield socket.socket(fileno=fd)
    finally:
        os.close(pidfd)
