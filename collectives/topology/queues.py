"""Messages that stand in line at ports, event by event: what a schedule takes where ranks go on with what has come.

So ranks do whose messages the host sends (collectives/execute/): nothing waits for the end of a round. A message leaves
once all that it carries has come to its sender and its receiver has made room:

- the messages of a pair leave in the order of the rounds;
- sums land in slots of scratch, twice as many as the fullest round needs, one after the other;
- where messages are not to meet (auto/pacing.py) a rank has few of them under way to it at once: from other nodes in
  the order of the rounds, in a node smaller than others from each node so; from each rank of its own node so many.

A link carries one message after the other, the one first that came first, as socket buffers and switches have it with
messages of some 10 to 100 KB. Streams, which go by rounds, share links by flows instead (flows.py).
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from lanterne.collectives.schedule.cost import chunk_nbytes
from lanterne.collectives.schedule.ir import CollectiveSchedule, Ints, Numbers, Phase
from lanterne.collectives.topology.crossing import SharedLinks
from lanterne.collectives.topology.flows import Messages, messages_of

# Slots of scratch for each sum that comes in the fullest round, as of execute/scratch.py.
SLOTS = 2


class Pacing(NamedTuple):
    """How messages are cut and posted.

    Attributes: `cells` of a chunk, one behind the other; `window` (world_size,) of each rank, messages that are under
    way to it from other nodes at once, None: any number from all; `neighbours`, the same from each rank of its own.
    """

    cells: int = 1
    window: Ints | None = None
    neighbours: int = 1


UNPACED = Pacing()


def simulate_queues(
    schedule: CollectiveSchedule,
    nbytes: float,
    topology: SharedLinks,
    node_of: Ints,
    starts_s: Numbers,
    pacing: Pacing = UNPACED,
) -> Numbers:
    """When each rank is done, s, of calls that know nothing of each other: (calls, world_size).

    Args:
        nbytes: of the larger of a rank's two buffers.
        node_of: (world_size,) the node of each rank.
        starts_s: (calls, world_size) when each rank comes.
    """
    from lanterne.collectives.topology.queue_events import run_queues

    arguments = arguments_of(cut(schedule, pacing.cells), nbytes, topology, node_of, pacing)
    finish_s = np.array(starts_s, float, order="C")
    for its_s in finish_s:
        run_queues(*[*arguments, its_s])
    return finish_s


def cut(schedule: CollectiveSchedule, cells: int) -> CollectiveSchedule:
    """`schedule` with so many chunks for each, and rounds one behind the other: of a round first cells, then second."""
    if cells == 1:
        return schedule
    parts = np.repeat(np.diff(schedule.offsets), cells)
    offsets = np.append(0, np.cumsum(parts))
    # Of each new round the transfers of the old one.
    place = (
        np.arange(offsets[-1]) - np.repeat(offsets[:-1], parts) + np.repeat(schedule.offsets[:-1].repeat(cells), parts)
    )
    columns = {name: getattr(schedule, name)[place] for name in ("src", "dst", "chunk", "op")}
    cell = np.repeat(np.tile(np.arange(cells), schedule.num_rounds), parts)
    columns["chunk"] = (columns["chunk"].astype(np.int64) * cells + cell).astype(schedule.chunk.dtype)
    phases = (Phase("cut", 0, len(parts)),)
    return replace(schedule, num_chunks=schedule.num_chunks * cells, offsets=offsets, phases=phases, **columns)


def arguments_of(
    schedule: CollectiveSchedule,
    nbytes: float,
    topology: SharedLinks,
    node_of: Ints,
    pacing: Pacing = UNPACED,
) -> list[Any]:
    """The arguments of run_queues but for the last one, of a schedule that is cut; otherwise as of simulate_queues."""
    unit = chunk_nbytes(schedule, nbytes)
    messages = messages_of(schedule, unit, topology)
    edges = [_carried(schedule, messages), _in_slots(messages, schedule.world_size)]
    if pacing.window is not None:
        edges.append(_few_at_once(messages, node_of, pacing.window, pacing.neighbours))
    before, after = np.concatenate(edges, axis=1)
    count = len(messages.src)
    next_post = _next_of_pair(messages, schedule.world_size)
    waits = np.bincount(np.concatenate([after, next_post[next_post >= 0]]), minlength=count)
    first = np.append(0, np.cumsum(np.bincount(before, minlength=count)))
    arrays = (
        *(messages.nbytes, messages.start_s, messages.reduced * (topology.gamma_s_per_byte * unit)),
        *(messages.links.ravel(), messages.capacity, messages.src, messages.dst, waits, first),
        *(after[np.argsort(before)], next_post, np.empty(count, np.int64), np.empty(len(messages.capacity))),
        *(np.empty(count), np.empty(count, np.int64), np.empty(schedule.world_size)),
    )
    return [
        schedule.world_size,
        count,
        len(messages.capacity),
        messages.links.shape[1],
        *map(np.ascontiguousarray, arrays),
    ]


def _carried(schedule: CollectiveSchedule, messages: Messages) -> Ints:
    """(2, edges) pairs of messages: what comes with the first leaves again, added up or not, with the second."""
    rounds, chunks = schedule.num_rounds, schedule.num_chunks
    round_of = messages.round[messages.of_transfer]
    came = (schedule.dst.astype(np.int64) * chunks + schedule.chunk) * rounds + round_of
    goes = (schedule.src.astype(np.int64) * chunks + schedule.chunk) * rounds
    order = np.argsort(came)
    ordered = came[order]
    begins, ends = np.searchsorted(ordered, goes), np.searchsorted(ordered, goes + round_of)
    counts = ends - begins
    places = np.arange(counts.sum()) + np.repeat(begins - np.cumsum(counts) + counts, counts)
    return np.stack([messages.of_transfer[order[places]], np.repeat(messages.of_transfer, counts)])


def _in_slots(messages: Messages, world_size: int) -> Ints:
    """(2, edges): the second lands where the first did."""
    sums = np.flatnonzero(messages.reduced > 0)
    dst, round_of = messages.dst[sums], messages.round[sums]
    rounds = int(messages.round.max(initial=0)) + 1
    fullest = (
        np.bincount(dst * rounds + round_of, minlength=world_size * rounds).reshape(world_size, rounds).max(axis=1)
    )
    return _behind(sums, dst, SLOTS * fullest)


def _few_at_once(messages: Messages, node_of: Ints, window: Ints, neighbours: int) -> Ints:
    """(2, edges): the second is let come once the first has."""
    src, dst = messages.src, messages.dst
    size = len(node_of)
    members = np.bincount(node_of)
    is_near = node_of[src] == node_of[dst]
    by_node = members[node_of[dst]] < members.max()
    flow = np.where(is_near, size + src, np.where(by_node, node_of[src], 2 * size))
    flows, of_flow = np.unique(dst * (3 * size) + flow, return_inverse=True)
    most = np.zeros(len(flows), np.int64)
    most[of_flow] = np.where(is_near, neighbours, window[dst])
    return _behind(np.arange(len(src)), of_flow, most)


def _behind(numbers: Ints, group: Ints, window: Ints) -> Ints:
    """(2, edges) pairs of `numbers` of a `group`: each with the one so many, by `window` of the group, behind it."""
    order = np.argsort(group, kind="stable")
    its, ordered = group[order], numbers[order]
    ahead = np.arange(len(its)) + window[its] if len(its) else np.zeros(0, np.int64)
    kept = np.flatnonzero(ahead < len(its))
    kept = kept[its[ahead[kept]] == its[kept]]
    return np.stack([ordered[kept], ordered[ahead[kept]]])


def _next_of_pair(messages: Messages, world_size: int) -> Ints:
    """(messages,) the next one from the same rank to the same; -1 where there is none."""
    pair = messages.src * world_size + messages.dst
    order = np.argsort(pair, kind="stable")
    found = np.full(len(pair), -1, np.int64)
    same = np.flatnonzero(pair[order][1:] == pair[order][:-1])
    found[order[same]] = order[same + 1]
    return found
