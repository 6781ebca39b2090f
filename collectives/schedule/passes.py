"""Pure functions from schedules to schedules: split chunks, reverse, chain one after another, name ranks anew."""

from dataclasses import replace

import numpy as np

from lanterne.collectives.schedule.ir import REDUCE, CollectiveSchedule, Phase
from lanterne.errors import InputError


def split_chunks(schedule, num_chunks):
    """`schedule` with each chunk cut so that there are `num_chunks`; None leaves it as it is.

    Raises:
        InputError: not a multiple of the schedule's own chunk count.
    """
    if num_chunks in (None, schedule.num_chunks):
        return schedule
    pieces, rest = divmod(num_chunks, schedule.num_chunks)
    if rest or pieces < 1:
        raise InputError(f"{schedule.name}: got {num_chunks} chunks, expected a multiple of {schedule.num_chunks}")
    chunk = (schedule.chunk[:, None].astype(np.int64) * pieces + np.arange(pieces)).reshape(-1)
    columns = {name: np.repeat(getattr(schedule, name), pieces) for name in ("src", "dst", "op")}
    return replace(schedule, num_chunks=num_chunks, chunk=chunk, offsets=schedule.offsets * pieces, **columns)


def reverse(schedule, collective):
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
        phases=[Phase(name, rounds - stop, rounds - start) for name, start, stop in reversed(schedule.phases)],
    )


def chain(collective, phases, root=None):
    """The schedules of `phases`, a dict by phase name, one after another; ranks and chunks must be the same in all."""
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
        *(np.concatenate([getattr(part, name) for part in parts]) for name in ("src", "dst", "chunk", "op")),
        np.concatenate([*offsets, ends[-1:]]),
        tuple(zip(phases, [0, *stops[:-1]], stops, strict=True)),
        root=root,
        ports=max(part.ports for part in parts),
    )
