"""Made-up jobs: what each rank's call log holds."""

import random

from lanterne.failslow.record.call_ring import RECORD, RingWriter
from lanterne.failslow.record.new_calls import NewCalls

CALLS = 4
OWN_S, TRANSFER_S = 5e-3, 2e-3


def job_calls(
    ranks,
    iterations,
    late=(None, 0, 0, 0.0),
    slow=(0, 0, 0.0),
    noise=0.01,
    skew_s=None,
    seed=1,
    later=(),
    own_s=OWN_S,
    transfer_s=TRANSFER_S,
    uneven_s=0.0,
):
    """{rank: [(name, ranks, communicator, nbytes, start_s, end_s)]} of a synchronous job of 4 calls an iteration.

    Args:
        late, each of later: (rank, first iteration, end, seconds): the rank comes late to every call by so much.
        slow: (first iteration, end, seconds): every call takes so much longer.
        skew_s: {rank: seconds that its clock is ahead}.
        own_s, transfer_s: what a rank does before a call, and what that takes.
        uneven_s: by how much longer, on average, as of ranks that share cores: each rank comes, and each call takes.
    """
    rng = random.Random(seed)
    logs, now_s = {rank: [] for rank in range(ranks)}, 100.0
    for iteration in range(iterations):
        for index in range(CALLS):
            starts = {rank: now_s + own_s * (1 + noise * rng.random()) for rank in logs}
            for rank, first, end, late_s in (late, *later):
                if rank is not None and first <= iteration < end:
                    starts[rank] += late_s
            if uneven_s:
                starts = {rank: start_s + uneven_s / 2 * rng.expovariate(1) for rank, start_s in starts.items()}
                now_s = uneven_s * rng.expovariate(1)
            else:
                now_s = 0.0
            now_s += max(starts.values()) + transfer_s * (1 + noise * rng.random())
            if slow[0] <= iteration < slow[1]:
                now_s += slow[2]
            name = "barrier" if index == CALLS - 1 else "all_reduce"
            for rank, start_s in starts.items():
                ahead_s = (skew_s or {}).get(rank, 0.0)
                logs[rank].append((name, ranks, 0, 4096, start_s + ahead_s, now_s + ahead_s))
    return logs


def write_logs(folder, logs, boots=None, ended=True, capacity=16_384):
    """A call log of every rank in `folder`; the RingWriters."""
    writers = []
    for rank, calls in logs.items():
        header = {"rank": rank, "pid": 1, "host": "h", "boot": (boots or {}).get(rank, "b")}
        writer = RingWriter(folder / f"rank-{rank}-1.calls", header, capacity)
        for name, *rest in calls:
            writer.channel(name, *rest[:2])(*rest[2:])
        if ended:
            writer.end()
        writers.append(writer)
    return writers


class Names(list):
    """Of the calls of a log, by number."""

    def name(self, number):
        return self[number]

    def number(self, name):
        return self.index(name) if name in self else None


def new_calls(calls, waited_us=None):
    """The NewCalls of {rank: [RecordedCall, or a tuple of its values]}.

    Args:
        waited_us: {rank: [what it had waited for a core by the start, and the end, of each call]}; none: nothing.
    """
    names = Names({call[0]: None for one in calls.values() for call in one})
    records = {}
    for rank, one in calls.items():
        waits = (waited_us or {}).get(rank) or [(0, 0)] * len(one)
        records[rank] = b"".join(
            RECORD.pack(1, names.index(name), *rest[:3], *both, *rest[3:])
            for (name, *rest), both in zip(one, waits, strict=True)
        )
    return NewCalls(dict(sorted(records.items())), dict.fromkeys(calls, names))
