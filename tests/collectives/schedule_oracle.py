"""A slow, obvious interpreter of schedules on Python dicts, against which the checker is held.

It shares nothing with check_schedule.py but the table of contracts, and it carries any values: sets of ranks, integers,
arrays.
"""

from collections import Counter

from lanterne.collectives.schedule.contracts import CONTRACTS, EVERY, ends_at, starts_at
from lanterne.collectives.schedule.ir import COPY, REDUCE, late_set
from lanterne.errors import ScheduleError


def interpret(schedule, start, add):
    """The final {(rank, chunk): value} of `schedule`.

    Args:
        start: (rank, chunk) -> what the rank has at first, asked only where the chunk starts there.
        add: (held, received) -> their sum; may raise.

    Raises:
        ScheduleError: a transfer that the semantics of schedule.py do not allow.
    """
    state = {}
    for chunk in range(schedule.num_chunks):
        at = int(starts_at(schedule, chunk))
        for rank in range(schedule.world_size) if at == EVERY else [at]:
            state[rank, chunk] = start(rank, chunk)
    for transfers in schedule.rounds:
        state = _after_round(schedule, state, transfers, add)
    return state


def _after_round(schedule, before, transfers, add):
    state, copies, reduces = dict(before), Counter(), Counter()
    ranks = range(schedule.world_size)
    for src, dst, chunk, op in transfers:
        to = (dst, chunk)
        if src == dst or src not in ranks or dst not in ranks or chunk not in range(schedule.num_chunks):
            raise ScheduleError(f"{src}->{dst} chunk {chunk}: out of range")
        if (src, chunk) not in before:
            raise ScheduleError(f"{src}->{dst} chunk {chunk}: nothing to send")
        if op == COPY:
            copies[to] += 1
            state[to] = before[src, chunk]
        elif op == REDUCE and to in before:
            reduces[to] += 1
            state[to] = add(state[to], before[src, chunk])
        else:
            raise ScheduleError(f"{src}->{dst} chunk {chunk}: nothing to add to, or op {op}")
    if any(count > 1 or to in reduces for to, count in copies.items()):
        raise ScheduleError("a chunk is written twice in a round")
    messages = {(src, dst) for src, dst, _, _ in transfers}
    for which in (0, 1):
        if max(Counter(message[which] for message in messages).values(), default=0) > schedule.ports:
            raise ScheduleError("more messages than ports")
    return state


def prove(schedule):
    """Raise ScheduleError unless every result holds each contribution exactly once and the late rank joins last."""
    joining, late = False, set(late_set(schedule.late_rank))
    for phase in schedule.phases:
        if joining and phase.name != "join":
            raise ScheduleError("a phase after the join")
        joining = phase.name == "join" and schedule.late_rank is not None
        if not joining:
            for index in range(phase.start, phase.stop):
                if any(late.intersection(transfer[:2]) for transfer in schedule.round(index)):
                    raise ScheduleError("the late rank takes part before the join")
    state = interpret(schedule, lambda rank, chunk: (rank,), lambda held, received: tuple(sorted(held + received)))
    prefix = CONTRACTS[schedule.collective].prefix
    for chunk in range(schedule.num_chunks):
        start, end = int(starts_at(schedule, chunk)), int(ends_at(schedule, chunk))
        wanted = tuple(range(schedule.world_size) if start == EVERY else [start])
        for rank in range(schedule.world_size) if end == EVERY else [end]:
            if prefix is not None:
                wanted = tuple(range(rank + prefix))
            if wanted and state.get((rank, chunk)) != wanted:
                raise ScheduleError(
                    f"rank {rank} chunk {chunk} ends with {state.get((rank, chunk))}, expected {wanted}"
                )
