"""Messages as flows that share links max-min fairly, event by event: what a schedule takes on links of any rates.

As in the model of rounds (schedule/cost.py) a rank is in its next round once its messages of this one are done, and a
message starts when both its ranks are there. Then it waits for the start-up times of the links that it crosses and
flows at the rate that all flows of that moment leave it. What happens at the same time is done at once. Where links
or nodes differ, prices are what this says; elsewhere it shares none of the model, and judges it.

The loop over events (flow_events.py) is compiled by Numba. Then 16 ranks take a millisecond, and 1,024 ranks in the
rounds of a hierarchical all-reduce a second or some more.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from lanterne.collectives.schedule.cost import CostModel, chunk_nbytes, num_messages
from lanterne.collectives.schedule.ir import REDUCE, CollectiveSchedule, Ints, Numbers
from lanterne.collectives.topology.crossing import SharedLinks

# The beta of links without an end to their rate, s per byte.
LEAST_BETA = 1e-30


class Messages(NamedTuple):
    """The messages of a schedule: arrays (messages,); `links` (messages, classes * 2), of `capacity`, bytes per s.

    A message that crosses fewer links has the last one for the others, which is without end. `start_s` is what passes
    before its bytes move, `reduced` of how many chunks its receiver adds, `of_transfer` the message of each transfer.
    """

    round: Ints
    src: Ints
    dst: Ints
    nbytes: Numbers
    reduced: Numbers
    links: Ints
    start_s: Numbers
    capacity: Numbers
    of_transfer: Ints


class Turns(NamedTuple):
    """The rounds of each rank that it takes part in, one after the other: a *turn* for each.

    Attributes:
        first: (world_size,) each rank's first turn, len(rank) where it has none.
        rank: of each turn; `last`, 1 where it is its rank's last one.
        added: bytes that it adds in the end, in chunks.
        starts, message: turn t has message[starts[t]:starts[t + 1]].
        of_src, of_dst: of each message, the turns of its ranks.
    """

    first: Ints
    rank: Ints
    last: Ints
    added: Numbers
    starts: Ints
    message: Ints
    of_src: Ints
    of_dst: Ints


def simulate_flows(
    schedule: CollectiveSchedule, nbytes: float, topology: SharedLinks, start_s: Numbers | None = None
) -> Numbers:
    """When each rank is done, (world_size,) s.

    Args:
        nbytes: of the larger of a rank's two buffers.
        start_s: (world_size,) when each rank comes; None: all at 0.
    """
    finish_s = np.zeros(schedule.world_size) if start_s is None else np.array(start_s, float)
    from lanterne.collectives.topology.flow_events import run_events

    run_events(*arguments_of(schedule, nbytes, topology, finish_s))
    return finish_s


def arguments_of(schedule: CollectiveSchedule, nbytes: float, topology: SharedLinks, finish_s: Numbers) -> list[Any]:
    """The arguments of run_events, of which `finish_s` is the last; otherwise as of simulate_flows."""
    unit = chunk_nbytes(schedule, nbytes)
    messages = messages_of(schedule, unit, topology)
    turns = turns_of(messages, schedule.world_size)
    count, num_links, most = len(messages.src), len(messages.capacity), len(messages.src) + len(turns.rank)

    def numbers(size: int) -> Numbers:
        return np.empty(size)

    def ints(size: int) -> Ints:
        return np.empty(size, np.int64)

    arrays = (
        *(messages.nbytes, messages.start_s, messages.links.ravel(), messages.capacity, turns.of_src, turns.of_dst),
        *(turns.first, turns.rank, turns.last, turns.added, turns.starts, turns.message),
        *(np.full(count, 2), np.diff(turns.starts), numbers(most), ints(most)),
        *(ints(count), numbers(count), numbers(count), ints(count)),
        *(numbers(num_links), numbers(num_links), ints(num_links), finish_s),
    )
    sizes = schedule.world_size, len(turns.rank), num_links, messages.links.shape[1]
    return [*sizes, float(topology.gamma_s_per_byte * unit), *map(np.ascontiguousarray, arrays)]


def messages_of(schedule: CollectiveSchedule, unit: float, topology: SharedLinks) -> Messages:
    """The Messages of `schedule` on `topology`, chunks having `unit` bytes."""
    p = schedule.world_size
    round_of = np.repeat(np.arange(schedule.num_rounds), np.diff(schedule.offsets))
    keys, inverse, chunks = np.unique(
        (round_of * p + schedule.src) * p + schedule.dst, return_inverse=True, return_counts=True
    )
    reduced = np.bincount(inverse, (schedule.op == REDUCE).astype(float), len(keys)).astype(float)
    src, dst, nbytes = keys // p % p, keys % p, np.asarray(chunks * unit, np.float64)
    start_s, columns, capacity = np.zeros(len(keys)), [], [np.zeros(0)]
    for model, (mask, leaves, enters, size, slowdown) in topology.crossed(src, dst):
        alpha_s, starts_s, beta = _line_of(model, nbytes[mask] * np.maximum(slowdown[leaves], slowdown[enters]))
        if model.serial_messages:
            rounds = keys[mask] // p**2
            ports = (rounds * p + src[mask], rounds * p + dst[mask], rounds * size + leaves, rounds * size + enters)
            starts_s += alpha_s * (num_messages(*ports) - 1)
        start_s[mask] += starts_s
        for side in (leaves, enters):
            used, place = np.unique(side, return_inverse=True)
            column = np.full(len(keys), -1, np.int64)
            column[mask] = place + sum(map(len, capacity))
            columns.append(column)
            capacity.append(1 / np.maximum(slowdown[used] * beta, LEAST_BETA))
    listed = np.stack(columns, axis=1) if columns else np.zeros((len(keys), 1), np.int64)
    limits = np.concatenate([*capacity, [np.inf]])
    listed[listed < 0] = len(limits) - 1
    return Messages(keys // p**2, src, dst, nbytes, reduced, listed, start_s, limits, inverse)


def _line_of(model: CostModel, nbytes: Numbers) -> tuple[Numbers, Numbers, float]:
    """(alpha_s, start_s, beta) of messages of `nbytes`: alone each takes start_s + beta * nbytes, of which alpha_s.

    A link has one rate, that of long messages, whatever caches or a token bucket's credit make of a short one that is
    alone: what short ones take longer than by that rate passes before their bytes move.
    """
    alpha_s, _ = model.alpha_beta(nbytes)
    beta = model.pieces[-1].beta_s_per_byte if model.pieces else model.beta_s_per_byte
    return alpha_s, np.maximum(replace(model, serial_messages=False).message_s(nbytes) - beta * nbytes, 0.0), beta


def turns_of(messages: Messages, world_size: int) -> Turns:
    """The Turns of `world_size` ranks in the rounds of `messages`."""
    count = len(messages.src)
    rounds = int(messages.round.max(initial=0)) + 1
    keys = np.concatenate([messages.src, messages.dst]) * rounds + np.tile(messages.round, 2)
    found, turn = np.unique(keys, return_inverse=True)
    rank = found // rounds
    order = np.argsort(turn, kind="stable")
    starts = np.searchsorted(turn[order], np.arange(len(found) + 1))
    added: Numbers = np.bincount(turn[count:], messages.reduced, len(found)).astype(float)
    first = np.searchsorted(rank, np.arange(world_size))
    # A rank without a turn has another's first one here.
    first[np.bincount(rank, minlength=world_size) == 0] = len(found)
    last = np.append(rank[1:] != rank[:-1], True)[: len(found)].astype(np.int64)
    return Turns(first, rank, last, added, starts, order % max(1, count), turn[:count], turn[count:])
