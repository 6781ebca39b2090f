"""The recorder inside a watched program: writes the calls of its ranks into call logs (ring.py) in a folder.

`lanterne watch` puts a `sitecustomize` on the program's path, which calls `start()` before the program begins. It does
nothing until a library is imported whose calls are known (adapters.py), and never more than write: whatever goes wrong
in here, the program goes on without being recorded. Standard library only.
"""

import atexit
import os
import socket
import sys
import time
import weakref

from .ring import CAPACITY, RingWriter

FOLDER_VARIABLE = "LANTERNE_WATCH"
# Modules whose calls carry out others, or are tests of ours.
INTERNAL = (
    "lanterne.transport.",
    "lanterne.collectives.",
    *(f"lanterne.failslow.{name}" for name in ("validate", "probe", "link_probe", "watch")),
)
RANK_VARIABLES = ("RANK", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")


class Recorder:
    """The call logs of this process, one for each rank that it holds; made in `folder` at a rank's first call."""

    def __init__(self, folder, capacity=CAPACITY):
        self._folder, self._capacity = folder, capacity
        self._rings = {}
        self._broken = False
        self.notes = set()
        # A forked child shares the pages: its calls would mix with ours.
        itself = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: itself() and itself()._stop())

    def call(self, rank, name, ranks, communicator, nbytes, start_s, end_s):
        """Record one call of `rank`; arguments as ring.Call. Never raises."""
        try:
            ring = self._rings.get(rank) or self._open(rank)
            if ring is not None:
                number = ring.name_number(name)
                ring.record(number, ranks & 0xFFFF, communicator & 0xFFFFFFFF, nbytes, start_s, end_s)
        except Exception:
            self._stop()

    def note(self, text):
        """Tell the reader something, once; before the first call."""
        self.notes.add(text)

    def _open(self, rank):
        if self._broken or len(self._rings) >= 1024:
            return None
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
        self._broken = True
        self._rings = {}


def start():
    """Record this program's calls into the folder that LANTERNE_WATCH names; for sitecustomize."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder and os.path.isdir(folder):
        from .adapters import install

        install(Recorder(folder))


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


def timed(call, note, inside="lanterne.transport."):
    """`call`, wrapped: after it, `note(args, kwargs, start_s, end_s)` is told, also when it raises.

    Calls that lanterne itself makes, or a module whose name begins with `inside`, to carry out one that has been
    recorded, pass through.
    """
    internal = (*INTERNAL, inside)

    def watched(*args, **kwargs):
        if sys._getframe(1).f_globals.get("__name__", "").startswith(internal):
            return call(*args, **kwargs)
        start_s = time.monotonic()
        try:
            return call(*args, **kwargs)
        finally:
            try:
                note(args, kwargs, start_s, time.monotonic())
            except Exception:
                # Not the program's fault, and not its concern.
                pass

    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        try:
            setattr(watched, name, getattr(call, name))
        except (AttributeError, TypeError):
            continue
    # What inspect.signature shows.
    watched.__wrapped__ = call
    return watched
