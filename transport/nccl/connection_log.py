"""What NCCL has taken for its connections (P2P, shared memory, a network, with or without GPUDirect), as its log says.

NCCL tells nobody but its log, once for each connection, when it is made: whoever wants to know has NCCL_DEBUG=INFO and
NCCL_DEBUG_FILE set before NCCL is loaded. Nothing of NCCL's depends on it.
"""

import os
import re
import socket
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path

LEVEL, FILE, PARTS = "NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"
# What says it, of what NCCL can write: connections are told under all of these, by version.
WANTED = {LEVEL: "INFO", PARTS: "INIT,P2P,SHM,NET"}
# Channel 00/1 : 0[0] -> 3[1] [send] via NET/IB/0/GDRDMA/Shared; names of networks may have spaces.
_CONNECTION = re.compile(
    r"Channel \d+(?:/\d+)? : (\d+)\[\w+\] -> (\d+)\[\w+\](?: \[(send|receive)\])? via (\S.*?)(?: comm .*)?$",
    re.MULTILINE,
)


class ConnectionLog:
    """What this process's NCCL logs from now on.

    Args:
        path: of its file, which need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin = 0
        with suppress(OSError):
            self._begin = path.stat().st_size

    @classmethod
    def here(cls) -> "ConnectionLog | None":
        """That of the file which the environment names; None where NCCL was not asked to write what is wanted."""
        path, level = os.environ.get(FILE), os.environ.get(LEVEL, "").upper()
        if not path or level not in ("INFO", "TRACE"):
            return None
        # As NCCL fills them in: the host's name ends at its first dot.
        host = socket.gethostname().partition(".")[0]
        return cls(Path(path.replace("%h", host).replace("%p", str(os.getpid()))))

    def taken(self, member: int) -> dict[int, str]:
        """{member: what `member` sends to it by}, as "P2P/CUMEM", of the communicator that was made meanwhile."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._begin)
                text = file.read().decode(errors="replace")
        except OSError:
            return {}
        found = _CONNECTION.findall(text)
        return {int(dst): way for src, dst, side, way in found if int(src) == member and side != "receive"}


@contextmanager
def logged(environment: MutableMapping[str, str] = os.environ) -> Iterator[None]:
    """Let NCCL, if it is loaded meanwhile, log its connections to memory of this process, which no end leaves behind.

    A log that the user has asked for stays as it was asked for.
    """
    if LEVEL in environment or FILE in environment:
        yield
        return
    with open(os.memfd_create("lanterne-nccl"), "wb") as memory:
        wanted = WANTED | {FILE: f"/proc/self/fd/{memory.fileno()}"}
        before = {name: environment.get(name) for name in wanted}
        environment.update(wanted)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    environment.pop(name, None)
                else:
                    environment[name] = value
