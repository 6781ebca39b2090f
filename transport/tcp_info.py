"""What Linux says of a TCP connection (struct tcp_info): whether the other end's kernel answers, and has all."""

import socket
import struct
from typing import NamedTuple, Protocol

# Where in it: how often what was sent last was sent again, and probes of a full buffer, each since the last answer;
# packets that are not acknowledged; milliseconds since one was; bytes that have not been sent.
RESENT_AT, PROBES_AT, UNACKED_AT, ANSWERED_AT, UNSENT_AT = 2, 3, 24, 56, 144
_WORD = struct.Struct("<I")
PROBE_MS = 200


class TcpInfo(NamedTuple):
    """A connection, as the kernel of this end sees it. What an older kernel does not tell is 0.

    Attributes: `resent`, how often what was sent last has been sent again, `probes`, of the other end's full buffer,
    both since its last answer; `unacked`, packets; `answered_ms`, since an acknowledgement came; `unsent_nbytes`.
    """

    resent: int
    probes: int
    unacked: int
    answered_ms: int
    unsent_nbytes: int

    @property
    def has_arrived(self) -> bool:
        """Whether all that has left this process is in the other end's kernel."""
        return not self.unacked and not self.unsent_nbytes

    def is_silent(self, lost_ms: int) -> bool:
        """Return whether the other end's kernel was asked and has answered nothing for `lost_ms`."""
        # A full buffer is probed after 0.2 s, 0.4 s and so on.
        probed_ms = (PROBE_MS << self.probes) - PROBE_MS
        return probed_ms > lost_ms or (self.resent > 0 and self.unacked > 0 and self.answered_ms > lost_ms)


class Told(Protocol):
    """A connection of which the kernel tells; see socket.socket."""

    def getsockopt(self, level: int, option: int, nbytes: int, /) -> bytes: ...


def tcp_info(sock: Told) -> TcpInfo:
    """The TcpInfo of a connection. Cost: 1 us."""
    told = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, UNSENT_AT + _WORD.size)
    info = told.ljust(UNSENT_AT + _WORD.size, b"\0")
    unacked, answered_ms, unsent = (_WORD.unpack_from(info, at)[0] for at in (UNACKED_AT, ANSWERED_AT, UNSENT_AT))
    return TcpInfo(info[RESENT_AT], info[PROBES_AT], unacked, answered_ms, unsent)
