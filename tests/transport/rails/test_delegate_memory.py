"""Shared memory without a name, and rings of notes through it."""

import mmap
import os
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanterne.errors import InputError, Unavailable
from lanterne.transport.rails import delegate_memory
from lanterne.transport.rails.delegate_memory import NUM_NOTES, PAGE, RING_WORDS, Arena, Ring, make_memory, map_memory


def new_ring():
    fd = make_memory(8 * RING_WORDS)
    words = map_memory(fd, 8 * RING_WORDS).cast("q")
    os.close(fd)
    return Ring(words), Ring(words)


@given(st.lists(st.booleans(), max_size=60))
def test_notes_come_in_order(puts):
    giver, taker = new_ring()
    put = taken = 0
    for is_put in puts:
        if is_put:
            giver.put(put, -put, 2**62, -(2**62), 7)
            put += 1
        elif taken < put:
            assert taker.take() == (taken, -taken, 2**62, -(2**62), 7), is_put
            taken += 1
        else:
            assert taker.take() is None, is_put


@given(st.lists(st.integers(0, 2), max_size=40))
def test_what_a_full_ring_has_no_room_for_comes_later_and_in_order(steps):
    giver, taker = new_ring()
    put = taken = 0
    for step in steps:
        if step < 2:
            for _ in range(NUM_NOTES // 2 + 1):
                giver.put(put, 0)
                put += 1
        else:
            giver.flush()
            for _ in range(NUM_NOTES // 3):
                if (note := taker.take()) is not None:
                    assert note[0] == taken, step
                    taken += 1
        assert len(giver.backlog) <= max(0, put - NUM_NOTES), step
    while (note := taker.take()) is not None or giver.backlog:
        giver.flush()
        if note is not None:
            assert note[0] == taken
            taken += 1
    assert taken == put


def test_a_sleeper_is_woken():
    giver, taker = new_ring()
    assert not giver.sleeps()
    assert taker.may_sleep() and giver.sleeps()
    taker.awake()
    assert not giver.sleeps()
    giver.put(1, 2)
    assert not taker.may_sleep()


def test_no_note_is_missed_between_two_threads():
    giver, taker = new_ring()
    wakeup, got, count = threading.Semaphore(0), [], 20_000

    def take():
        while len(got) < count:
            if (note := taker.take()) is not None:
                got.append(note[0])
            else:
                if taker.may_sleep():
                    assert wakeup.acquire(timeout=30), "a wake-up was lost"
                taker.awake()

    thread = threading.Thread(target=take)
    thread.start()
    for index in range(count):
        giver.put(index, 0)
        if giver.sleeps():
            wakeup.release()
    while giver.backlog:
        giver.flush()
        wakeup.release()
    thread.join(60)
    assert got == list(range(count))


@settings(deadline=None)
@given(st.lists(st.integers(0, 3 * PAGE), min_size=1, max_size=30), st.sampled_from([64, PAGE]), st.randoms())
def test_allocations_do_not_overlap_and_are_used_again(sizes, align, random):
    arena = Arena(400 * PAGE, "room", align)
    memory, held = np.frombuffer(arena.view, np.uint8), {}
    for turn in range(2):
        for index, nbytes in enumerate(sizes):
            held[index] = arena.allocate(nbytes)
            assert held[index] % align == 0, (index, nbytes)
            memory[held[index] : held[index] + nbytes] = index
        for index, nbytes in enumerate(sizes):
            assert (memory[held[index] : held[index] + nbytes] == index).all(), (index, nbytes)
        assert arena.used_nbytes >= sum(sizes), turn
        end = max(held[index] + nbytes for index, nbytes in enumerate(sizes))
        for index in random.sample(range(len(sizes)), len(sizes)):
            arena.free(held[index], sizes[index])
        assert arena.used_nbytes == 0, turn
    assert end <= sum(-(-max(1, nbytes) // align) * align for nbytes in sizes)
    arena.close()


def test_a_full_arena_says_what_is_needed():
    arena = Arena(4 * PAGE, "room for three")
    arena.allocate(3 * PAGE)
    with pytest.raises(
        InputError, match=f"got {4 * PAGE} bytes, of which {3 * PAGE} .* at least {5 * PAGE}: room for three"
    ):
        arena.allocate(PAGE + 1)
    arena.close()


def test_a_system_without_memory(monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    arena = Arena(4 * PAGE, "room")
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(Unavailable, match="shared memory: 10 more bytes: No space left"):
        arena.allocate(10)
    arena.close()


def test_memory_has_no_name_and_goes_with_its_last_holder():
    arena = Arena(PAGE, "room")
    arena.view[0] = 7
    other = mmap.mmap(arena.fd, PAGE)
    path = os.readlink(f"/proc/self/fd/{arena.fd}")
    assert path.startswith("/memfd:") and path.endswith("(deleted)")
    arena.close()
    assert other[0] == 7


def test_other_processors_are_refused(monkeypatch):
    monkeypatch.setattr(delegate_memory.platform, "machine", lambda: "aarch64")
    with pytest.raises(Unavailable, match="got a aarch64 processor, expected x86-64"):
        delegate_memory.check_machine()
