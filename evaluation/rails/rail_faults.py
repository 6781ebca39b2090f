"""Breaks the rails of delegates from outside, as a network card that dies would; for experiments and tests. Linux."""

import ctypes
import os
import socket
import struct
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress

from lanterne.errors import Unavailable
from lanterne.transport.rails.rail import MEMORY

PIDFD_GETFD = 438
SO_ATTACH_FILTER = 26
# A packet filter of one instruction: return 0, nothing passes.
NOTHING_PASSES = struct.pack("HBBI", 0x06, 0, 0, 0)


def cut(pids: Iterable[int], rail: str, *, silently: bool = False, spared_ports: Collection[int] = ()) -> int:
    """Break every connection of a rail that the processes `pids` hold; returns how many.

    Args:
        rail: "memory" or the address of a TCP rail.
        silently: packets are dropped from now on, and nobody is told; else the connections are reset.
        spared_ports: of TCP connections at that address that stay.

    Raises:
        Unavailable: this system does not let us (it takes the right to trace those processes).
    """
    count = 0
    for pid in pids:
        for sock in _sockets(pid):
            with sock, suppress(OSError):
                if _is_of(sock, rail, spared_ports):
                    count += 1
                    mute(sock) if silently else sock.shutdown(socket.SHUT_RDWR)
    return count


def _is_of(sock: socket.socket, rail: str, spared_ports: Collection[int]) -> bool:
    if sock.type != socket.SOCK_STREAM:
        return False
    if sock.family == socket.AF_UNIX:
        return rail == MEMORY
    (here, port, *_), (there, their_port, *_) = sock.getsockname(), sock.getpeername()
    return rail in (here, there) and not {port, their_port} & set(spared_ports)


def mute(sock: socket.socket) -> None:
    """Let nothing that comes to a socket through."""
    code = ctypes.create_string_buffer(NOTHING_PASSES, len(NOTHING_PASSES))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HxxxxxxP", 1, ctypes.addressof(code)))


def _sockets(pid: int) -> Iterator[socket.socket]:
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
