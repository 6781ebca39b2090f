"""The recorder inside a watched program: writes the calls of its ranks into call logs (call_ring.py) in a folder.

`lanterne watch` puts a `sitecustomize` on the program's path, which calls `start()` of adapters.py before the program
begins. It does nothing until a library is imported whose calls are known, and never more than write: whatever goes
wrong in here, the program goes on without being recorded. Standard library only.

A thread of its own says every second that the program's Python runs, and where it is while no call begins; in one
process of each host also, now and then, what the host tells of itself (telemetry.py).
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from lanterne.failslow.operate.core_waits import CoreWaits
from lanterne.failslow.operate.telemetry import HostTelemetry, rank_gpu, rank_nic
from lanterne.failslow.record.bounds import KEPT, OPEN
from lanterne.failslow.record.call_ring import CAPACITY, Channel, RingWriter
from lanterne.failslow.record.stream_times import CallGroups, Mark, QueuedCalls, end

if TYPE_CHECKING:
    from pathlib import Path

FOLDER_VARIABLE = "LANTERNE_WATCH"
# Modules whose calls carry out others, or are tests of ours.
INTERNAL = (
    "lanterne.transport.",
    "lanterne.collectives.",
    "lanterne.failslow.validate.",
    "lanterne.failslow.record.watch",
    "lanterne.torch.",
)
# What is of the recorder in a program's stack.
OWN = "lanterne.failslow.record."
RANK_VARIABLES = ("RANK", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
SIZE_VARIABLES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE")

BEAT_S, TELEMETRY_S = 1.0, 10.0
MAX_FRAMES = 24
# Ranks of one process whose waits for a core are read: each has a file open for it.
MAX_WAITS = 64
PATH_SUFFIX = ".path"

# (rank, name, ranks that take part, communicator, bytes) of a call from its (args, kwargs), before it begins.
Described: TypeAlias = tuple[int, str, int, int, int]
Describe: TypeAlias = Callable[[tuple[Any, ...], dict[str, Any]], Described]
# Where a call of (args, kwargs) is queued: what times it there, and its stream; None where it is not.
OnDevice: TypeAlias = Callable[[tuple[Any, ...], dict[str, Any]], "tuple[QueuedCalls | None, Any] | None"]
# Of a program's stack, the innermost first: (file, line, function).
Frame: TypeAlias = tuple[str, int, str]


class Recorder:
    """The call logs of this process, one for each rank that it holds; made in `folder` at a rank's first call."""

    def __init__(self, folder: str | Path, capacity: int = CAPACITY) -> None:
        self._folder = folder
        self._capacity = capacity
        self._rings: dict[int, RingWriter] = {}
        # (rank, name, ranks, communicator) -> what writes such a call.
        self._channels: dict[tuple[int, str, int, int], Channel] = {}
        # rank -> the thread that made its first call.
        self._threads: dict[int, int] = {}
        self._groups: set[int] = set()
        self._paths: set[str] = set()
        self._ended = threading.Event()
        # Says every second that Python runs; tells of the host, where this process does.
        self._thread: threading.Thread | None = None
        self._teller: threading.Thread | None = None
        self._lock = threading.Lock()
        self._stopped = False
        self.notes: set[str] = set()
        # Names of calls that return before all ranks have come to them.
        self.queued: set[str] = set()
        self.groups: CallGroups = CallGroups()
        # By library and device; None where events cannot be had.
        self._devices: dict[object, QueuedCalls | None] = {}
        # Neither the thread nor what waits for the end of the program keeps a recorder that nobody has any more.
        self._itself = itself = weakref.ref(self)
        self._at_exit: Callable[[], None] = lambda: _end(itself())
        weakref.finalize(self, self._ended.set).atexit = False
        # A forked child shares the pages: its calls would mix with ours.
        os.register_at_fork(after_in_child=lambda: _stop(itself()))

    def channel(self, rank: int, name: str, ranks: int, communicator: int) -> Channel:
        """What writes such calls of `rank`; arguments as RecordedCall. The caller sees to what it raises (`timed`)."""
        key = rank, name, ranks, communicator
        try:
            return self._channels[key]
        except KeyError:
            return self._channel(*key)

    def group(self, communicator: int, ranks: Sequence[int]) -> None:
        """Say which ranks of the job a communicator has, for those who look for the one that does not come."""
        if communicator in self._groups or len(self._groups) >= OPEN:
            return
        self._groups.add(communicator)
        with suppress(OSError):
            _write(os.path.join(self._folder, f"group-{communicator & 0xFFFFFFFF}.json"), [int(r) for r in ranks])

    def path(self, text: str) -> None:
        """Say over what calls go, such as "torch.distributed over gloo"."""
        if text in self._paths or len(self._paths) >= KEPT:
            return
        self._paths.add(text)
        with suppress(OSError):
            _write(os.path.join(self._folder, f"{zlib.crc32(text.encode())}{PATH_SUFFIX}"), text)

    def device(self, key: object, make: Callable[[], QueuedCalls]) -> QueuedCalls | None:
        """What times calls on the device `key` of a library, made by `make`; None where that fails."""
        if key not in self._devices:
            found: QueuedCalls | None = None
            with suppress(Exception):
                found = make()
            self._devices[key] = found
        return self._devices[key]

    def fault(self) -> None:
        """A call could not be recorded: the reader is told how many."""
        for ring in self._rings.values():
            ring.fault()

    def note(self, text: str) -> None:
        """Tell the reader something, once; before the first call."""
        self.notes.add(text)

    def _channel(self, rank: int, name: str, ranks: int, communicator: int) -> Channel:
        # A forked child, where nothing is recorded, may find the lock held by a thread that it has not.
        if self._stopped:
            return IGNORE
        with self._lock:
            if rank not in self._rings and len(self._rings) >= 1024:
                return IGNORE
            try:
                ring = self._rings.get(rank) or self._open(rank)
            except (OSError, ValueError):
                # No room for a log: the program goes on without.
                self.stop()
                return IGNORE
        if len(self._channels) >= OPEN:
            self._channels.clear()
        found = ring.channel(name, ranks & 0xFFFF, communicator & 0xFFFFFFFF)
        self._channels[rank, name, ranks, communicator] = found
        return found

    def _open(self, rank: int) -> RingWriter:
        header = {
            "version": 2,
            "rank": rank,
            "pid": os.getpid(),
            "started": start_of(os.getpid()),
            "pids": pid_namespace(),
            "host": socket.gethostname(),
            "boot": boot_id(),
            "world_size": environment_world_size(),
            "program": program_text(),
            "notes": sorted(self.notes),
            "queued": sorted(self.queued),
            "gpu": rank_gpu(os.environ),
            "nic": rank_nic(os.environ),
        }
        path = os.path.join(self._folder, f"rank-{rank}-{os.getpid()}.calls")
        waits = CoreWaits(threading.get_native_id()) if len(self._rings) < MAX_WAITS else None
        ring = self._rings[rank] = RingWriter(path, header, self._capacity, waits)
        ring.beat(time.monotonic())
        self._threads[rank] = threading.get_ident()
        if len(self._rings) == 1:
            atexit.register(self._at_exit)
            arguments = self._itself, self._ended
            self._thread = threading.Thread(target=_beats, args=arguments, name="lanterne-recorder", daemon=True)
            self._thread.start()
            if self._speaks_for_host():
                # A thread of its own: a driver that hangs must not stop the beats.
                about = os.fspath(self._folder), self._ended
                self._teller = threading.Thread(target=_tell_of_host, args=about, name="lanterne-host", daemon=True)
                self._teller.start()
        return ring

    def _beat(self, told: dict[int, int]) -> bool:
        """Say that Python runs, and where each rank is that has begun no call since the last time; False at the end.

        Args:
            told: how many calls each rank had begun then.
        """
        now_s = time.monotonic()
        for rank, ring in list(self._rings.items()):
            ring.beat(now_s)
            if told.get(rank) == ring.begun:
                with suppress(OSError):
                    record = {"time_s": now_s, "frames": stack_of(self._threads[rank])}
                    _write(os.path.join(self._folder, f"rank-{rank}-{os.getpid()}.stack"), record)
            told[rank] = ring.begun
        return bool(self._rings)

    def _speaks_for_host(self) -> bool:
        """Whether this process is the first of its host, or follows one that is gone."""
        path = os.path.join(self._folder, f"host-{socket.gethostname()}.owner")
        own = f"{path}-{os.getpid()}"
        try:
            _write(own, [os.getpid(), start_of(os.getpid())])
            try:
                os.link(own, path)
            except FileExistsError:
                with open(path) as file:
                    pid, started = json.load(file)
                if start_of(int(pid)) == started:
                    return False
                os.replace(own, path)
            return True
        except (OSError, ValueError, TypeError):
            return False
        finally:
            with suppress(OSError):
                os.unlink(own)

    def end(self) -> None:
        """The program, or the watched block, has ended in order: nothing is recorded any more."""
        atexit.unregister(self._at_exit)
        for device in self._devices.values():
            if device is not None:
                device.stop()
        for ring in self._rings.values():
            ring.end()
        self.stop()
        self._ended.set()
        for thread in filter(None, (self._thread, self._teller)):
            # It may be writing to a disk that hangs, or ask a driver that does.
            thread.join(BEAT_S)

    def stop(self) -> None:
        """Record nothing any more."""
        self._stopped = True
        self._rings = {}
        self._channels = {}


def _tell_of_host(folder: str, ended: threading.Event) -> None:
    """Write what this host tells of itself, every TELEMETRY_S until `ended`."""
    telemetry, host = HostTelemetry(), socket.gethostname()
    while not ended.is_set():
        with suppress(Exception):
            _write(os.path.join(folder, f"host-{host}.telemetry"), {"host": host, **telemetry.read()})
        ended.wait(TELEMETRY_S)


def _beats(itself: weakref.ref[Recorder], ended: threading.Event) -> None:
    """Every second until the end of the recorder."""
    told: dict[int, int] = {}
    while not ended.wait(BEAT_S):
        recorder = itself()
        if recorder is None or not recorder._beat(told):
            return
        del recorder


def _end(recorder: Recorder | None) -> None:
    if recorder is not None:
        recorder.end()


def _stop(recorder: Recorder | None) -> None:
    if recorder is not None:
        recorder.stop()


# Of a Recorder that records no more.
IGNORE = Channel(lambda nbytes, start_s: 0, lambda index, end_s: None, lambda index, start_s: None)


def stack_of(thread: int) -> list[Frame]:
    """The Frames of the thread with identifier `thread`, without ours; empty where it is gone."""
    frame: FrameType | None = sys._current_frames().get(thread)
    found: list[Frame] = []
    # What a thread that runs meanwhile has as its caller may be anything, in rare cases no frame.
    while isinstance(frame, FrameType) and len(found) < MAX_FRAMES:
        if not str(frame.f_globals.get("__name__", "")).startswith(OWN):
            found.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return found


def _write(path: str, value: object) -> None:
    """Write `value` as JSON; who reads finds it whole."""
    with open(f"{path}.new", "w") as file:
        json.dump(value, file)
    os.replace(f"{path}.new", path)


def program_text() -> str:
    """This program's arguments, cut: in a log's header, as JSON, a character takes up to 12 bytes."""
    text = " ".join(sys.argv)
    return text[:512] if text.isascii() else text[:128]


class ProcessStat(NamedTuple):
    """What Linux tells of a process: its state, a letter; its parent; when it was started and its core time, ticks."""

    state: str
    parent: int
    started: int
    used: int


def process_stat(folder: str | os.PathLike[str]) -> ProcessStat:
    """Return the ProcessStat of the process with this folder in /proc: state "X", started 0 where it is gone."""
    try:
        with open(os.path.join(folder, "stat")) as file:
            words = file.read().rpartition(")")[2].split()
        return ProcessStat(words[0], int(words[1]), int(words[19]), int(words[11]) + int(words[12]))
    except (OSError, IndexError, ValueError):
        return ProcessStat("X", 0, 0, 0)


def start_of(pid: int) -> int:
    """Return when process `pid` was started, ticks since the machine was; 0 where that is not known."""
    return process_stat(f"/proc/{pid}").started


def environment_rank() -> int:
    """The rank that a launcher gave this process in its environment; 0 where it gave none."""
    return _first_number(RANK_VARIABLES)


def environment_world_size() -> int:
    """How many ranks a launcher said there are; 0 where it did not."""
    return _first_number(SIZE_VARIABLES)


def _first_number(names: Sequence[str]) -> int:
    texts = (os.environ.get(name, "") for name in names)
    return next((int(text) for text in texts if text.isascii() and text.isdigit()), 0)


def pid_namespace() -> str:
    """What processes have in common that see each other's numbers; empty where that is not known."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def boot_id() -> str:
    """What processes have in common whose time.monotonic() is one clock."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return socket.gethostname()


def timed(
    call: Callable[..., Any],
    describe: Describe,
    recorder: Recorder,
    inside: str = "lanterne.transport.",
    on_device: OnDevice | None = None,
) -> Callable[..., Any]:
    """`call`, wrapped: what `describe` says of it is recorded when it begins, and its end, also when it raises.

    Of what is queued on a stream, which `on_device` says, both are the device's, written once it has come there.
    Calls that lanterne itself makes, or a module whose name begins with `inside`, to carry out one that has been
    recorded, pass through. What `describe` raises is not the program's fault and not its concern: `recorder` counts it.

    Cost: 2 us a call with what is recorded of it, and two events of one that is queued.
    """
    internal = (*INTERNAL, inside)
    # Module -> whether its calls pass through.
    passes: dict[str, bool] = {}
    frame, now = sys._getframe, time.monotonic

    def watched(*args: Any, **kwargs: Any) -> Any:
        module = frame(1).f_globals.get("__name__", "")
        is_internal = passes.get(module)
        if is_internal is None:
            is_internal = passes[module] = str(module).startswith(internal)
        if is_internal:
            return call(*args, **kwargs)
        mark: Mark | None = None
        try:
            rank, name, ranks, communicator, nbytes = describe(args, kwargs)
            channel = recorder.channel(rank, name, ranks, communicator)
            index = channel.begin(nbytes, now())
            if on_device is not None and (queued := on_device(args, kwargs)) is not None:
                mark = mark_of(queued)
        except Exception:
            recorder.fault()
            channel, index = IGNORE, 0
        try:
            return call(*args, **kwargs)
        finally:
            if mark is None:
                channel.end(index, now())
            else:
                end(mark, channel, index)

    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        try:
            setattr(watched, name, getattr(call, name))
        except (AttributeError, TypeError):
            continue
    # What inspect.signature shows.
    watched.__dict__["__wrapped__"] = call
    return watched


def mark_of(queued: tuple[QueuedCalls | None, Any] | None) -> Mark | None:
    """The Mark of a call that begins where `queued` says (OnDevice); None where it cannot be timed."""
    return None if queued is None or queued[0] is None else queued[0].begin(queued[1])
