"""Runs the programs of a group in one thread, in a random order: a transport that is as unkind as it may be.

A message is copied at a random moment between being posted on both sides and completing, so a program that changes a
buffer too early, or reads it too late, gives wrong results; and with rendezvous a program that waits in a circle stops.
"""

from collections import defaultdict, deque

import numpy as np

from lanterne.collectives.execute.rank_program import IN, OUT, SCRATCH, Fold, Message
from lanterne.collectives.schedule.ir import REDUCE

COMBINE = {"sum": np.add, "mean": np.add, "min": np.minimum, "max": np.maximum, "prod": np.multiply}


class Deadlock(AssertionError):
    """Actions are left, and none can start."""


class RankState:
    """One rank: its program, its buffers as bytes, and how far it is."""

    def __init__(self, program, in_array, out_array):
        self.program = program
        self.buffers = {
            IN: in_array.view(np.uint8).reshape(-1),
            OUT: out_array.view(np.uint8).reshape(-1),
            SCRATCH: np.full(program.scratch_nbytes, 0xA5, np.uint8),
        }
        self.waits = list(program.waits)
        self.ready = [index for index, waits in enumerate(self.waits) if not waits]
        self.left = len(self.waits)

    def bytes_at(self, place, nbytes):
        assert place.offset + nbytes <= self.buffers[place.buffer].size
        return self.buffers[place.buffer][place.offset : place.offset + nbytes]

    def event(self, index):
        self.waits[index] -= 1
        assert self.waits[index] >= 0
        if not self.waits[index]:
            self.ready.append(index)

    def finish(self, index):
        self.left -= 1
        for follower in self.program.successors[index]:
            self.event(follower)


def run_group(programs, in_arrays, out_arrays, dtype, op="sum", seed=0, eager=False):
    """Run all `programs`; the out_arrays then hold the result.

    Raises:
        Deadlock: some cannot finish.
    """
    rng = np.random.default_rng(seed)
    ranks = [RankState(*state) for state in zip(programs, in_arrays, out_arrays, strict=True)]
    sends, receives = defaultdict(deque), defaultdict(deque)
    while any(state.left for state in ranks):
        events = [(rank, None) for rank, state in enumerate(ranks) if state.ready]
        events += [(pair, "match") for pair, queue in sends.items() if queue and receives[pair]]
        if not events:
            raise Deadlock(f"actions left by rank: {[state.left for state in ranks]}")
        what, match = events[rng.integers(len(events))]
        if match:
            _deliver(ranks, what, sends[what].popleft(), receives[what].popleft())
        else:
            _start(ranks, what, rng, sends, receives, np.dtype(dtype), op, eager)
    assert not any(sends.values()) and not any(receives.values())


def _deliver(ranks, pair, send, receive):
    (index, data, nbytes), (into, place, expected) = send, receive
    assert nbytes == expected, f"{pair}: sent {nbytes} bytes, expected {expected}"
    sender, receiver = (ranks[rank] for rank in pair)
    if index is None:
        receiver.bytes_at(place, nbytes)[:] = data
    else:
        receiver.bytes_at(place, nbytes)[:] = sender.bytes_at(data, nbytes)
        sender.finish(index)
    receiver.finish(into)


def _start(ranks, rank, rng, sends, receives, dtype, op, eager):
    state = ranks[rank]
    index = state.ready.pop(rng.integers(len(state.ready)))
    action = state.program.actions[index]
    if type(action) is Message:
        if not action.sends:
            receives[action.peer, rank].append((index, action.place, action.nbytes))
        elif eager:
            sends[rank, action.peer].append((None, state.bytes_at(action.place, action.nbytes).copy(), action.nbytes))
            state.finish(index)
        else:
            sends[rank, action.peer].append((index, action.place, action.nbytes))
        if state.program.next_post[index] >= 0:
            state.event(state.program.next_post[index])
        return
    if type(action) is Fold:
        nbytes = action.num_elements * dtype.itemsize
        total = state.bytes_at(action.inputs[0], nbytes).view(dtype).copy()
        for place in action.inputs[1:]:
            COMBINE[op](total, state.bytes_at(place, nbytes).view(dtype), out=total)
        if action.divides:
            total = total / len(ranks)
        state.bytes_at(action.out, nbytes)[:] = total.astype(dtype).view(np.uint8)
    else:
        state.bytes_at(action.target, action.nbytes)[:] = state.bytes_at(action.source, action.nbytes)
    state.finish(index)


def reducing_transfers(checked, rank):
    """The most REDUCE transfers that `rank` receives in one round: what the scratch bound counts."""
    schedule = checked.schedule
    rounds = map(schedule.columns, range(schedule.num_rounds))
    return max((np.count_nonzero((dst == rank) & (op == REDUCE)) for _, dst, _, op in rounds), default=0)
