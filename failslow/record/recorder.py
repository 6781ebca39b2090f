"""The recorder inside a watched program: writes the calls of its ranks into call logs (call_ring.py) in a folder.

`lanterne watch` puts a `sitecustomize` on the program's path, which calls `start()` of adapters.py before the program
begins. It does nothing until a library is imported whose calls are known, and never more than write: whatever goes
wrong in here, the program goes on without being recorded. Standard library only.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import time
import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from lanterne.failslow.record.call_ring import CAPACITY, RingWriter, Write

if TYPE_CHECKING:
    from pathlib import Path

FOLDER_VARIABLE = "LANTERNE_WATCH"
# Modules whose calls carry out others, or are tests of ours.
INTERNAL = (
    "lanterne.transport.",
    "lanterne.collectives.",
    "lanterne.failslow.validate.",
    "lanterne.failslow.record.watch",
)
# Communicators come and go in some programs; beyond so many channels all are made anew.
MAX_CHANNELS = 4096
RANK_VARIABLES = ("RANK", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")

# Is told of a call: (args, kwargs, start_s, end_s).
Note: TypeAlias = Callable[[tuple[Any, ...], dict[str, Any], float, float], None]


class Recorder:
    """The call logs of this process, one for each rank that it holds; made in `folder` at a rank's first call."""

    def __init__(self, folder: str | Path, capacity: int = CAPACITY) -> None:
        self._folder = folder
        self._capacity = capacity
        self._rings: dict[int, RingWriter] = {}
        # (rank, name, ranks, communicator) -> what writes such a call.
        self._channels: dict[tuple[int, str, int, int], Write] = {}
        self.notes: set[str] = set()
        # A forked child shares the pages: its calls would mix with ours.
        itself = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _stop(itself()))

    def call(
        self, rank: int, name: str, ranks: int, communicator: int, nbytes: int, start_s: float, end_s: float
    ) -> None:
        """Record one call of `rank`; arguments as RecordedCall. The caller sees to what it raises (`timed`)."""
        key = rank, name, ranks, communicator
        try:
            write = self._channels[key]
        except KeyError:
            write = self._channel(*key)
        write(nbytes, start_s, end_s)

    def fault(self) -> None:
        """A call could not be recorded: the reader is told how many."""
        for ring in self._rings.values():
            ring.fault()

    def note(self, text: str) -> None:
        """Tell the reader something, once; before the first call."""
        self.notes.add(text)

    def _channel(self, rank: int, name: str, ranks: int, communicator: int) -> Write:
        if rank not in self._rings and len(self._rings) >= 1024:
            return _ignore
        try:
            ring = self._rings.get(rank) or self._open(rank)
        except (OSError, ValueError):
            # No room for a log: the program goes on without.
            self.stop()
            return _ignore
        if len(self._channels) >= MAX_CHANNELS:
            self._channels.clear()
        write = ring.channel(name, ranks & 0xFFFF, communicator & 0xFFFFFFFF)
        self._channels[rank, name, ranks, communicator] = write
        return write

    def _open(self, rank: int) -> RingWriter:
        header = {
            "version": 1,
            "rank": rank,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "boot": boot_id(),
            "program": " ".join(sys.argv)[:512],
            "notes": sorted(self.notes),
        }
        path = os.path.join(self._folder, f"rank-{rank}-{os.getpid()}.calls")
        ring = self._rings[rank] = RingWriter(path, header, self._capacity)
        if len(self._rings) == 1:
            atexit.register(self.end)
        return ring

    def end(self) -> None:
        """The program, or the watched block, has ended in order: nothing is recorded any more."""
        atexit.unregister(self.end)
        for ring in self._rings.values():
            ring.end()
        self.stop()

    def stop(self) -> None:
        """Record nothing any more."""
        self._rings = {}
        self._channels = defaultdict(lambda: _ignore)


def _stop(recorder: Recorder | None) -> None:
    if recorder is not None:
        recorder.stop()


def _ignore(nbytes: int, start_s: float, end_s: float) -> None:
    """Stands for the writer of a Recorder that records no more."""


def environment_rank() -> int:
    """The rank that a launcher gave this process in its environment; 0 where it gave none."""
    for name in RANK_VARIABLES:
        text = os.environ.get(name, "")
        if text.isascii() and text.isdigit():
            return int(text)
    return 0


def boot_id() -> str:
    """What processes have in common whose time.monotonic() is one clock."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return socket.gethostname()


def timed(
    call: Callable[..., Any], note: Note, recorder: Recorder, inside: str = "lanterne.transport."
) -> Callable[..., Any]:
    """`call`, wrapped: after it, `note` is told, also when it raises.

    Calls that lanterne itself makes, or a module whose name begins with `inside`, to carry out one that has been
    recorded, pass through. What `note` raises is not the program's fault and not its concern: `recorder` counts it.

    Cost: 1.5 us a call with what is recorded of it.
    """
    internal = (*INTERNAL, inside)
    # Module -> whether its calls pass through.
    passes: dict[str, bool] = {}
    frame, now = sys._getframe, time.monotonic

    def watched(*args: Any, **kwargs: Any) -> Any:
        module = frame(1).f_globals.get("__name__", "")
        if module not in passes:
            passes[module] = str(module).startswith(internal)
        if passes[module]:
            return call(*args, **kwargs)
        start_s = now()
        try:
            return call(*args, **kwargs)
        finally:
            try:
                note(args, kwargs, start_s, now())
            except Exception:
                recorder.fault()

    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        try:
            setattr(watched, name, getattr(call, name))
        except (AttributeError, TypeError):
            continue
    # What inspect.signature shows.
    watched.__dict__["__wrapped__"] = call
    return watched
