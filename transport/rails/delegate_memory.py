"""What a rank and its delegates share: an arena that messages lie in, and rings of short notes.

Both are memfds, handed to the delegates as open files: they have no name, so when the last process that holds them is
gone, killed or not, so is the memory. What a device copies into the arena is counted beside it (kernels/chunks.py), so
that whoever sends or reads a message sees how much of it has landed, and its rank waits for no copy.
"""

import mmap
import os
import platform
import struct
import threading
from collections import deque
from typing import TypeAlias

from lanterne.errors import InputError, Unavailable
from lanterne.kernels.chunks import FLAG_MODULUS, chunk_nbytes_of, landed_nbytes

PAGE = mmap.PAGESIZE
# Notes in a ring; one note, a cache line of native 64-bit ints: a kind, its subject, what the kind says, and a stamp.
NUM_NOTES, NOTE, NOTE_NBYTES, NOTE_WORDS, _STAMP = 1024, struct.Struct("5q16xq"), 64, 8, 7
# Words of a ring: what its taker tells, each in a cache line of its own, then the notes.
_CONSUMED, _SLEEPS, _NOTES = 0, 8, 16
_NOTES_AT = 8 * _NOTES
RING_WORDS = _NOTES + NUM_NOTES * NOTE_WORDS
# What a note says: a kind, its subject, and three words.
Note: TypeAlias = tuple[int, int, int, int, int]
_lock = threading.Lock()


def check_machine() -> None:
    """Raise Unavailable where stores may be seen in another order than made: a note before what it tells of."""
    if platform.machine() not in ("x86_64", "AMD64"):
        raise Unavailable(
            f"delegate: got a {platform.machine()} processor, expected x86-64, whose stores keep their order"
        )


def fence() -> None:
    """Let no later load pass an earlier store: taking a lock does, in 50 ns."""
    with _lock:
        pass


class Arena:
    """Memory that is taken from the system as it is needed, and used again.

    Args:
        nbytes: at most so many.
        purpose: what must fit in it, for the error when it is full.
        align: allocations begin at, and are rounded up to, multiples of it; a page or a divisor of one.

    Attributes: `fd`; `view`, a memoryview of bytes, with a page for `landed_counter` at its end; `used_nbytes`, in
    allocations.

    Raises:
        InputError: not at least one page.
        Unavailable: the system has no more memory.
    """

    def __init__(self, nbytes: int, purpose: str, align: int = PAGE) -> None:
        if nbytes < PAGE:
            raise InputError(f"shared memory: got {nbytes} bytes, expected at least {PAGE}: {purpose}")
        self.nbytes = nbytes
        self.used_nbytes: int = 0
        self._purpose = purpose
        self._align = align
        whole = -(-nbytes // PAGE) * PAGE + PAGE
        self.fd: int = make_memory(whole)
        self._reserve(whole - PAGE, PAGE, PAGE)
        self.view: memoryview = map_memory(self.fd, whole)
        self._end = 0
        self._free: dict[int, list[int]] = {}  # offsets by size

    def allocate(self, nbytes: int) -> int:
        """The offset of `nbytes` bytes.

        Raises:
            InputError: the arena is full.
            Unavailable: the system has no more memory.
        """
        size = self._size(nbytes)
        offset = free.pop() if (free := self._free.get(size)) else self._extend(size, nbytes)
        self.used_nbytes += size
        return offset

    def _size(self, nbytes: int) -> int:
        return max(1, -(-nbytes // self._align)) * self._align

    def _extend(self, size: int, nbytes: int) -> int:
        if self._end + size > self.nbytes:
            raise InputError(
                f"shared memory: got {self.nbytes} bytes, of which {self.used_nbytes} are in use, and {nbytes} more "
                f"are asked for, expected at least {self._end + size}: {self._purpose}"
            )
        offset = self._end
        self._reserve(offset, size, nbytes)
        self._end += size
        return offset

    def _reserve(self, offset: int, size: int, nbytes: int) -> None:
        """Take `size` bytes from the system, for `nbytes` that are asked for."""
        try:
            # A lack of memory is then an error here, and no SIGBUS when a page is touched.
            os.posix_fallocate(self.fd, offset, size)
        except OSError as error:
            raise Unavailable(f"shared memory: {nbytes} more bytes: {error.strerror}") from error

    def free(self, offset: int, nbytes: int) -> None:
        """Take back what `allocate(nbytes)` gave."""
        size = self._size(nbytes)
        self._free.setdefault(size, []).append(offset)
        self.used_nbytes -= size

    def close(self) -> None:
        """Let go of the memory; arrays in it keep it alive."""
        os.close(self.fd)


def landed_counter(view: memoryview) -> memoryview:
    """(1,) uint32, a memoryview: the chunks that a device has copied into the arena `view` of this or another process.

    A message that is handed over before it has landed has a ticket where else its departure is: see `ticket_of`.
    """
    start = view.nbytes - PAGE
    return view[start : start + 4].cast("I")


def ticket_of(first_chunk: int) -> int:
    """What stands for the departure of a message of which `first_chunk` is the first chunk: a negative int."""
    return -1 - first_chunk % FLAG_MODULUS


def landed_of(counter: memoryview, ticket: int, nbytes: int) -> int:
    """Bytes, from its start, of a message of `nbytes` that have landed, by its `ticket` and the arena's counter."""
    return landed_nbytes(counter[0], -1 - ticket, nbytes, chunk_nbytes_of(nbytes))


def make_memory(nbytes: int) -> int:
    """The file descriptor of `nbytes` bytes of nameless shared memory."""
    fd = os.memfd_create("lanterne-delegate", os.MFD_CLOEXEC)
    os.ftruncate(fd, nbytes)
    return fd


def map_memory(fd: int, nbytes: int, *, populate: bool = False) -> memoryview:
    """The shared memory `fd` as a memoryview of bytes; unmapped when nothing refers to it any more.

    Args:
        populate: whether all of it is taken from the system now, and not when it is first touched.
    """
    return memoryview(mmap.mmap(fd, nbytes, mmap.MAP_SHARED | (mmap.MAP_POPULATE if populate else 0)))


class Ring:
    """One end of a ring of notes; one process puts, another takes.

    A note is valid once its stamp is its number, from 1 on, which is stored last and read first.

    Args:
        words: memoryview of 64-bit ints, RING_WORDS of them, zeros at first.

    Attributes: `backlog`, the notes that there was no room for yet; the ring is full while there are any.
    """

    __slots__ = ("_bytes", "_full", "_number", "_words", "backlog")

    def __init__(self, words: memoryview) -> None:
        self._words = words
        self._bytes = words.cast("B")
        # The number of the last note put, or taken, at this end.
        self._number = 0
        # What it is when the ring is full, as far as is known: the taker's counter is in another core's cache.
        self._full = NUM_NOTES
        self.backlog: deque[Note] = deque()

    def put(self, kind: int, subject: int, first: int = 0, second: int = 0, third: int = 0) -> None:
        """Put a note, at once or, where there is no room, with a `flush` to come.

        Cost: 0.5 us; where a stage has swept the caches 10 us, most of it code: Struct.pack_into took 9 us more.
        """
        number = self._number
        if number == self._full:
            self.backlog.append((kind, subject, first, second, third))
            self.flush()
            return
        self._number = number = number + 1
        words, at = self._words, _NOTES + number % NUM_NOTES * NOTE_WORDS
        words[at] = kind
        words[at + 1] = subject
        words[at + 2] = first
        words[at + 3] = second
        words[at + 4] = third
        words[at + _STAMP] = number

    def flush(self) -> None:
        """Put what there was no room for, as far as there is now."""
        while self.backlog:
            self._full = self._words[_CONSUMED] + NUM_NOTES
            if self._number == self._full:
                return
            self.put(*self.backlog.popleft())

    def take(self) -> Note | None:
        """The oldest note; None if there is none."""
        if self.is_empty():
            return None
        self._number = number = self._number + 1
        note: Note = NOTE.unpack_from(self._bytes, _NOTES_AT + number % NUM_NOTES * NOTE_NBYTES)[:5]
        self._words[_CONSUMED] = number
        return note

    def is_empty(self) -> bool:
        """Whether there is nothing to take."""
        number = self._number + 1
        return self._words[_NOTES + _STAMP + number % NUM_NOTES * NOTE_WORDS] != number

    def may_sleep(self) -> bool:
        """Tell, by the taker, that it goes to sleep; False if a note came meanwhile. `awake` afterwards."""
        self._words[_SLEEPS] = 1
        fence()
        return self.is_empty()

    def awake(self) -> None:
        """Tell, by the taker, that it does not sleep any more."""
        self._words[_SLEEPS] = 0

    def sleeps(self) -> bool:
        """Whether the taker must be woken for what was put."""
        fence()
        return self._words[_SLEEPS] == 1
