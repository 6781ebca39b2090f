"""A physical link that several pairs of a host's ranks share: it takes their messages as they come, one by one."""

import fcntl
import mmap
import os
from pathlib import Path

WORD_NBYTES = 8


class SharedWires:
    """One rank's ends of such links, all in a file that the ranks map: until when each is busy.

    Args:
        path: the file, `file_nbytes(count)` long and zero at first; every rank opens it for itself.
        count: of links.
    """

    def __init__(self, path: str | Path, count: int) -> None:
        self._file = open(path, "r+b")  # noqa: SIM115 (closed by close)
        self._map = mmap.mmap(self._file.fileno(), file_nbytes(count))
        self._until_s = memoryview(self._map).cast("d")
        self.wires: tuple[SharedWire, ...] = tuple(SharedWire(self, index) for index in range(count))

    def turn(self, index: int, now_s: float, busy_s: float) -> float:
        """When a message that is there at `now_s` begins to cross link `index`, which it occupies for `busy_s`."""
        # The lock is of the open file: threads that are ranks take turns too.
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            begins_s = max(now_s, self._until_s[index])
            self._until_s[index] = begins_s + busy_s
            return begins_s
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Unmap and close the file."""
        self._until_s.release()
        self._map.close()
        self._file.close()


class SharedWire:
    """The `index`-th link of `wires`; a Wire of transport.shaped."""

    __slots__ = ("_index", "_wires")

    def __init__(self, wires: SharedWires, index: int) -> None:
        self._wires, self._index = wires, index

    def turn(self, now_s: float, busy_s: float) -> float:
        return self._wires.turn(self._index, now_s, busy_s)


def file_nbytes(count: int) -> int:
    """How long the file of `count` links is."""
    return max(count, 1) * WORD_NBYTES


def make_file(folder: str | Path, count: int) -> Path:
    """A new file for `count` links in `folder`."""
    path = Path(folder, "shared-wires")
    with open(path, "wb") as file:
        os.truncate(file.fileno(), file_nbytes(count))
    return path
