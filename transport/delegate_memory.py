"""What a rank and its delegates share: an arena that messages lie in, and rings of short notes.

Both are memfds, handed to the delegates as open files: they have no name, so when the last process that holds them is
gone, killed or not, so is the memory.
"""

import mmap
import os
import platform
import struct
import threading

from ..errors import InputError, Unavailable

PAGE = mmap.PAGESIZE
# Notes in a ring; one note, native 64-bit ints: a kind, its subject, and what the kind says.
NUM_NOTES, NOTE = 4096, struct.Struct("5q")
# Words of a ring: its counters, each in a cache line of its own, then the notes.
_PRODUCED, _CONSUMED, _SLEEPS, _NOTES = 0, 8, 16, 24
RING_WORDS = _NOTES + NUM_NOTES * NOTE.size // 8

_lock = threading.Lock()


def check_machine():
    """Raise Unavailable where stores may be seen in another order than made: a note before what it tells of."""
    if platform.machine() not in ("x86_64", "AMD64"):
        raise Unavailable(f"delegate: got a {platform.machine()} processor, expected x86-64, whose stores keep their order")


def fence():
    """Let no later load pass an earlier store: taking a lock does, in 50 ns."""
    with _lock:
        pass


class Arena:
    """Memory for messages, taken from the system as it is needed, and used again.

    Args:
        nbytes: at most so many.

    Attributes: `fd`; `view`, a memoryview of bytes; `used_nbytes`, in allocations.

    Raises:
        InputError: not at least one page.
    """

    def __init__(self, nbytes):
        if nbytes < PAGE:
            raise InputError(f"delegate: got {nbytes} bytes of shared memory, expected at least {PAGE}")
        self.nbytes, self.used_nbytes = nbytes, 0
        self.fd = make_memory(nbytes)
        self.view = map_memory(self.fd, nbytes)
        self._end, self._free = 0, {}

    def allocate(self, nbytes):
        """The offset of `nbytes` bytes, on a page of their own.

        Raises:
            InputError: the arena is full.
            Unavailable: the system has no more memory.
        """
        size = max(PAGE, (nbytes + PAGE - 1) // PAGE * PAGE)
        if free := self._free.get(size):
            offset = free.pop()
        else:
            offset = self._extend(size, nbytes)
        self.used_nbytes += size
        return offset

    def _extend(self, size, nbytes):
        if self._end + size > self.nbytes:
            raise InputError(
                f"delegate: got {self.nbytes} bytes of shared memory, of which {self.used_nbytes} are in use, and "
                f"{nbytes} more are asked for, expected at least {self._end + size}: memory_nbytes must hold all "
                "messages that a rank sends and receives in an iteration"
            )
        offset = self._end
        try:
            # So that a lack of memory is an error here, and no SIGBUS when a page is touched.
            os.posix_fallocate(self.fd, offset, size)
        except OSError as error:
            raise Unavailable(f"delegate: {nbytes} more bytes of shared memory: {error.strerror}") from error
        self._end += size
        return offset

    def free(self, offset, nbytes):
        """Take back what `allocate(nbytes)` gave."""
        size = max(PAGE, (nbytes + PAGE - 1) // PAGE * PAGE)
        self._free.setdefault(size, []).append(offset)
        self.used_nbytes -= size

    def close(self):
        """Let go of the memory; arrays in it keep it alive."""
        os.close(self.fd)


def make_memory(nbytes):
    """The file descriptor of `nbytes` bytes of nameless shared memory."""
    fd = os.memfd_create("lanterne-delegate", os.MFD_CLOEXEC)
    os.ftruncate(fd, nbytes)
    return fd


def map_memory(fd, nbytes):
    """The shared memory `fd` as a memoryview of bytes; unmapped when nothing refers to it any more."""
    return memoryview(mmap.mmap(fd, nbytes))


class Ring:
    """A ring of notes; one process puts, another takes.

    Args:
        words: memoryview of 64-bit ints, RING_WORDS of them, zeros at first.
    """

    __slots__ = ("_bytes", "_consumed", "_produced", "_words")

    def __init__(self, words):
        self._words, self._bytes = words, words.cast("B")
        self._produced, self._consumed = words[_PRODUCED], words[_CONSUMED]

    def put(self, kind, subject, first=0, second=0, third=0):
        """Put a note; False if there is no room now."""
        words, produced = self._words, self._produced
        if produced - words[_CONSUMED] == NUM_NOTES:
            return False
        NOTE.pack_into(self._bytes, 8 * _NOTES + produced % NUM_NOTES * NOTE.size, kind, subject, first, second, third)
        self._produced = words[_PRODUCED] = produced + 1
        return True

    def take(self):
        """The oldest note, five ints; None if there is none."""
        words, consumed = self._words, self._consumed
        if words[_PRODUCED] == consumed:
            return None
        note = NOTE.unpack_from(self._bytes, 8 * _NOTES + consumed % NUM_NOTES * NOTE.size)
        self._consumed = words[_CONSUMED] = consumed + 1
        return note

    def may_sleep(self):
        """Tell, by the taker, that it goes to sleep; False if a note came meanwhile. `awake` afterwards."""
        self._words[_SLEEPS] = 1
        fence()
        return self._words[_PRODUCED] == self._consumed

    def awake(self):
        """Tell, by the taker, that it does not sleep any more."""
        self._words[_SLEEPS] = 0

    def sleeps(self):
        """Whether the taker must be woken for what was put."""
        fence()
        return self._words[_SLEEPS] == 1
