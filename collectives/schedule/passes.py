"""Pure functions from schedules to schedules: split chunks, reverse, chain several, label anew, what waits for some."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np

from lanterne.collectives.schedule.ir import REDUCE, CollectiveSchedule, LateRank, Phase, late_set
from lanterne.errors import InputError


def split_chunks(schedule: CollectiveSchedule, num_chunks: int | None) -> CollectiveSchedule:
    """`schedule` with each chunk cut so that there are `num_chunks`; None leaves it as it is.

    Raises:
        InputError: not a multiple of the schedule's own chunk count.
    """
    if num_chunks is None or num_chunks == schedule.num_chunks:
        return schedule
    pieces, rest = divmod(num_chunks, schedule.num_chunks)
    if rest or pieces < 1:
        raise InputError(f"{schedule.name}: got {num_chunks} chunks, expected a multiple of {schedule.num_chunks}")
    chunk = (schedule.chunk[:, None].astype(np.int64) * pieces + np.arange(pieces)).reshape(-1)
    src, dst, op = (np.repeat(column, pieces) for column in (schedule.src, schedule.dst, schedule.op))
    offsets = schedule.offsets * pieces
    return replace(schedule, num_chunks=num_chunks, src=src, dst=dst, chunk=chunk, op=op, offsets=offsets)


def reverse(schedule: CollectiveSchedule, collective: str) -> CollectiveSchedule:
    """The mirror image in time: copies that spread data become reduces that collect it.

    A broadcast becomes a reduce and an all-gather a reduce-scatter, if no rank receives a chunk twice.
    """
    rounds, last = schedule.num_rounds, schedule.num_transfers
    return replace(
        schedule,
        collective=collective,
        src=schedule.dst[::-1],
        dst=schedule.src[::-1],
        chunk=schedule.chunk[::-1],
        op=np.full(last, REDUCE),
        offsets=last - schedule.offsets[::-1],
        phases=tuple(Phase(name, rounds - stop, rounds - start) for name, start, stop in reversed(schedule.phases)),
    )


def chain(collective: str, phases: Mapping[str, CollectiveSchedule]) -> CollectiveSchedule:
    """The schedules of `phases`, by phase name, one after another; ranks and chunks must be the same in all."""
    parts = list(phases.values())
    first = parts[0]
    stops = np.cumsum([part.num_rounds for part in parts]).tolist()
    ends = np.cumsum([0] + [part.num_transfers for part in parts])
    offsets = [part.offsets[:-1] + end for part, end in zip(parts, ends[:-1], strict=True)]
    return CollectiveSchedule(
        collective,
        first.algorithm,
        first.world_size,
        first.num_chunks,
        np.concatenate([part.src for part in parts]),
        np.concatenate([part.dst for part in parts]),
        np.concatenate([part.chunk for part in parts]),
        np.concatenate([part.op for part in parts]),
        np.concatenate([*offsets, ends[-1:]]),
        tuple(Phase(*phase) for phase in zip(phases, [0, *stops[:-1]], stops, strict=True)),
        ports=max(part.ports for part in parts),
    )


def relabelled(schedule: CollectiveSchedule) -> CollectiveSchedule:
    """`schedule` with the ports that it needs, and with late ranks the rounds from their first on named "join"."""
    round_of = np.repeat(np.arange(schedule.num_rounds), np.diff(schedule.offsets))
    # With the counts, as `distinct` does.
    messages, _ = np.unique(np.stack([round_of, schedule.src, schedule.dst], axis=1), axis=0, return_counts=True)
    at_once = [np.unique(messages[:, (0, side)], axis=0, return_counts=True)[1] for side in (1, 2)]
    schedule = replace(schedule, ports=max(1, *(int(count.max(initial=0)) for count in at_once)))
    late = late_set(schedule.late_rank)
    if not late:
        return schedule
    takes_part = np.isin(schedule.src, late) | np.isin(schedule.dst, late)
    first = int(round_of[np.argmax(takes_part)]) if takes_part.any() else schedule.num_rounds
    before = [
        Phase("main" if name == "join" else name, start, min(stop, first))
        for name, start, stop in schedule.phases
        if start < first
    ]
    return replace(schedule, phases=(*before, Phase("join", first, schedule.num_rounds)))


def waiting_part(schedule: CollectiveSchedule, late_rank: LateRank) -> CollectiveSchedule:
    """The transfers of `schedule` that wait for `late_rank`, as a schedule that is priced but promises nothing.

    So what it takes from when the late ranks come, if all else is over then: of a round in which some wait and some do
    not, those that do have the links for themselves.
    """
    waits = np.zeros(schedule.world_size, bool)
    waits[list(late_set(late_rank))] = True
    kept = np.ones(schedule.num_transfers, bool)
    src, dst = schedule.src.astype(np.int64), schedule.dst.astype(np.int64)
    for begin, end in pairwise(schedule.offsets.tolist()):
        its_src, its_dst = src[begin:end], dst[begin:end]
        its = waits[its_src] | waits[its_dst]
        kept[begin:end] = its
        waits[its_src[its]] = waits[its_dst[its]] = True
        if waits.all():
            break
    offsets = np.unique(np.append(0, np.cumsum(kept))[schedule.offsets])
    columns = {name: getattr(schedule, name)[kept] for name in ("src", "dst", "chunk", "op")}
    return replace(schedule, offsets=offsets, phases=(Phase("join", 0, len(offsets) - 1),), **columns)
