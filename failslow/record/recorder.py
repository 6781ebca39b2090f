"""The recorder inside a watched program: writes the calls of its ranks into call logs (call_ring.py) in a folder.

`lanterne watch` puts a `sitecustomize` on the program's path, which calls `start()` of adapters.py before the program
begins. It does nothing until a library is imported whose calls are known, and never more than write: whatever goes
wrong in here, the program goes on without being recorded. Standard library only.
"""

import atexit
import os
import socket
import sys
import time
import weakref
from collections import defaultdict

from lanterne.failslow.record.call_ring import CAPACITY, RingWriter

FOLDER_VARIABLE = "LANTERNE_WATCH"
# Modules whose calls carry out others, or are tests of ours.
INTERNAL = (
    "lanterne.transport.",
    "lanterne.collectives.",
    *(f"lanterne.failslow.{name}" for name in ("validate", "probe", "link_probe", "watch")),
)
# Communicators come and go in some programs; beyond so many channels all are made anew.
MAX_CHANNELS = 4096
RANK_VARIABLES = ("RANK", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")


class Recorder:
    """The call logs of this process, one for each rank that it holds; made in `folder` at a rank's first call."""

    def __init__(self, folder, capacity=CAPACITY):
        self._folder, self._capacity = folder, capacity
        # (rank, name, ranks, communicator) -> what writes such a call.
        self._rings, self._channels = {}, {}
        self.notes = set()
        # A forked child shares the pages: its calls would mix with ours.
        itself = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: itself() and itself()._stop())

    def call(self, rank, name, ranks, communicator, nbytes, start_s, end_s):
        """Record one call of `rank`; arguments as ring.Call. Who calls it sees to what it raises (`timed`)."""
        key = rank, name, ranks, communicator
        try:
            write = self._channels[key]
        except KeyError:
            write = self._channel(*key)
        write(nbytes, start_s, end_s)

    def fault(self):
        """A call could not be recorded: the reader is told how many."""
        for ring in self._rings.values():
            ring.fault()

    def note(self, text):
        """Tell the reader something, once; before the first call."""
        self.notes.add(text)

    def _channel(self, rank, name, ranks, communicator):
        if rank not in self._rings and len(self._rings) >= 1024:
            return _ignore
        try:
            ring = self._rings.get(rank) or self._open(rank)
        except (OSError, ValueError):
            # No room for a log: the program goes on without.
            self._stop()
            return _ignore
        if len(self._channels) >= MAX_CHANNELS:
            self._channels.clear()
        write = ring.channel(name, ranks & 0xFFFF, communicator & 0xFFFFFFFF)
        self._channels[rank, name, ranks, communicator] = write
        return write

    def _open(self, rank):
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

    def end(self):
        """The program, or the watched block, has ended in order: nothing is recorded any more."""
        atexit.unregister(self.end)
        for ring in self._rings.values():
            ring.end()
        self._stop()

    def _stop(self):
        self._rings, self._channels = {}, defaultdict(lambda: _ignore)


def _ignore(nbytes, start_s, end_s):
    """What writes the calls of who records no more."""


def environment_rank():
    """The rank that a launcher gave this process in its environment; 0 where it gave none."""
    for name in RANK_VARIABLES:
        text = os.environ.get(name, "")
        if text.isascii() and text.isdigit():
            return int(text)
    return 0


def boot_id():
    """What processes have in common whose time.monotonic() is one clock."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return socket.gethostname()


def timed(call, note, recorder, inside="lanterne.transport."):
    """`call`, wrapped: after it, `note(args, kwargs, start_s, end_s)` is told, also when it raises.

    Calls that lanterne itself makes, or a module whose name begins with `inside`, to carry out one that has been
    recorded, pass through. What `note` raises is not the program's fault and not its concern: `recorder` counts it.

    Cost: 1.5 us a call with what is recorded of it.
    """
    internal = (*INTERNAL, inside)
    # Module -> whether its calls pass through.
    passes = {}
    frame, now = sys._getframe, time.monotonic

    def watched(*args, **kwargs):
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
    watched.__wrapped__ = call
    return watched
