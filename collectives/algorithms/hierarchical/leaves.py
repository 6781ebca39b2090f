"""Across nodes of which some have a slow NIC: these hang on the others as *leaves*, and pass on nothing for them.

A ring sends 2 (N - 1) / N of the buffer through every NIC, and so takes a slow one 1.75 times as long, of 8 nodes, as
its own part needs: the buffer out once, and the result in once, both ways at a time. Here the others, k of them, sum
and gather among themselves, slice by slice, a chunk for each as its owner; of one chunk a round a leaf brings its
contribution to the owner, and gets the result a round later. Late nodes hang on them alike.
"""

import numpy as np

from lanterne.collectives.schedule.ir import COPY, REDUCE, CollectiveSchedule, Ints, ScheduleBuilder


def leaves_all_reduce(
    world_size: int, leaves: tuple[int, ...], late: tuple[int, ...], num_chunks: int
) -> CollectiveSchedule:
    """The all-reduce of nodes, each one rank, on which `leaves` hang, and `late` ones in phase "join".

    At least one node must be neither.

    Cost (k others, m chunks): m + 1 rounds with the leaves, and 2 (k - 1) without; of late ones the first k - 1 rounds
    are before the join.
    """
    hanging = sorted({*leaves, *late})
    inner = np.array([rank for rank in range(world_size) if rank not in hanging])
    k = len(inner)
    build = ScheduleBuilder("all_reduce", "leaves", world_size, num_chunks, ports=1 + len(hanging))
    chunk = np.arange(num_chunks)
    slices, place = chunk // k, chunk % k
    # Slice 0 is summed in the first k - 1 rounds; others while the one before is exchanged, or with late ones at once.
    first = np.where((slices > 0) & (not late), (k - 1) + (slices - 1) * k, 0)
    meets = (k - 1) + chunk
    # The result of the last chunk of its slice is there.
    gathered = (k - 1) + np.minimum((slices + 1) * k, num_chunks)
    index: list[Ints] = []
    columns: list[tuple[Ints, ...]] = []

    def add(at: Ints, src: Ints, dst: Ints, of: Ints, op: int) -> None:
        index.append(at)
        columns.append((src, dst, of, np.full(len(at), op)))

    for step in range(k - 1):
        # The sum of a chunk ends at its owner, and the result starts there.
        sender = (place + 1 + step) % k
        add(first + step, inner[sender], inner[(sender + 1) % k], chunk, REDUCE)
        sender = (place + step) % k
        add(gathered + step, inner[sender], inner[(sender + 1) % k], chunk, COPY)
    for rank in hanging:
        add(meets, np.full(num_chunks, rank), inner[place], chunk, REDUCE)
        add(meets + 1, inner[place], np.full(num_chunks, rank), chunk, COPY)
    at = np.concatenate(index)
    src, dst, of, op = (np.concatenate(column) for column in zip(*columns, strict=True))
    if not late:
        _add(build, at, src, dst, of, op)
        return build.build()
    for name, mask in (("reduce_scatter", at < k - 1), ("join", at >= k - 1)):
        build.phase(name)
        _add(build, at[mask], src[mask], dst[mask], of[mask], op[mask])
    return build.build()


def _add(build: ScheduleBuilder, index: Ints, src: Ints, dst: Ints, chunk: Ints, op: Ints) -> None:
    if len(index):
        build.rounds(index - index.min(), src, dst, chunk, op)
