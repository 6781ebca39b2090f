"""How large messages are and how many are under way, from what was measured of the group. Pure.

Where a message takes long to start, compared with what a byte takes, small ones waste time. Where it takes short, large
ones do: a rank sends nothing on before the whole has come, and what two senders have under way to one receiver at once
delays whatever comes behind it.
"""

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum

import numpy as np

from lanterne.collectives.algorithms.hierarchical.compose import Nodes
from lanterne.collectives.schedule.cost import CostModel
from lanterne.collectives.schedule.ir import REDUCE, CollectiveSchedule
from lanterne.transport.base import Transport


class Traffic(Enum):
    """How the messages of an algorithm meet."""

    ROUNDS = "partners that change with the rounds"
    STREAM = "all that a rank receives comes from one peer"
    PIECES = "of a late-rank algorithm of any number of chunks: they must not meet at a port"
    # Cut into pieces, those of one round meet those of the next (16 MiB stragglar, 8 hosts at 200 Mbit/s: 1.70 times a
    # buffer's time with halves of a chunk and two credits, 2.0 with one or any number, 2.2 with 250 KB, 2.8 with 50).
    EXCHANGES = "of another late-rank algorithm: whole chunks, with partners that change every round"
    # Chunks, or equal parts of them that are not short: with halves of any size, or two chunks in a message, what
    # passes through few credits to a NIC that ranks share stands in line there (8 MiB hier_late_join, hosts of 1, 3 and
    # 4 ranks, 128 to 512 chunks: 1.03 to 1.06 times a buffer's time in parts of 16 to 31 KB, whole 65 KB 1.2).
    CROSSINGS = "of a late-rank algorithm over nodes, each cell a message: they must not meet at a NIC"


ROUNDS, STREAM, PIECES, EXCHANGES, CROSSINGS = Traffic
# Receives from a peer of the same node that are posted at once: enough for memory to be busy, and few, since a rank
# that posts hundreds when the late one comes keeps its core from those beside it (2 hosts of 4 ranks on 2 cores: 500
# posts, 10 to 160 ms).
NEIGHBOUR_CREDITS = 8


# Bytes of a cell where messages are queued on a stream, at most: each round is a group, and each group a kernel of
# NCCL's. And of the scratch into which a group's contributions are received, while another's are folded.
QUEUED_NBYTES = 32 << 20  # chosen: 90 us at 360 GB/s, a group starts in 8
QUEUED_SCRATCH_NBYTES = 256 << 20  # chosen: a GPU has some 100 GiB
# Cells of this size overlap transfer with reduction; chunks are cut into at most max_segments.
SEGMENT_NBYTES = 2 << 20  # mpi, 4 ranks on 2 cores, 16 MiB: 0.72 of MPI_Allreduce's time
MAX_SEGMENTS = 64  # chosen: cells of 2 MiB up to chunks of 128 MiB
# On slower networks they are such that their bytes take this many times their start.
SEGMENT_STARTS = 32  # ring, 256 KiB there: 1.79 to 1.86 (2 MiB 2.06, 1 MiB 1.95)
LEAST_SEGMENT_NBYTES = 64 << 10  # chosen: the executor's own work is some 0.1 ms a message
# Where all that a rank receives comes from one peer, shorter ones, `credits` of them under way: what a rank was
# granted stands in the queue before its own grants, so that with more of it one that begins 2 ms after its
# neighbours loses 10 to 40, and all behind it. But not so short that the executor's own work counts. Exchanges with
# many peers lose by it (rhd 1.84 to 1.94).
STREAM_STARTS = 12  # ring, 50 to 128 KB there: 1.78 to 1.79
LEAST_STREAM_S = 1e-3  # the executor's own work is some 0.1 ms a message
# But no more parts of a chunk than these: they cost their sender and receiver some 0.2 ms of a core each, and a
# longer one delays the end by itself once.
STREAM_SEGMENTS = 4  # ring there: 1.6 to 2.0 s of CPU a GB, with 8 parts 2.4 to 3.2, and as long
# Under load a network takes several unloaded starts to answer, since what grants the next message queues behind
# bulk. So many of them times the bandwidth are the bytes that a rank of a late-rank algorithm has under way to it,
# in `credits` messages, one of them as yet on its way to be granted.
# late_join, starts of 0.35 ms, 75 to 100 KB under way there: 1.03 to 1.04; 4 hosts at 1 Gbit/s, 100 KB: 1.07
LOADED_STARTS = 12
CREDITS = 2  # one message comes while the next is granted
LEAST_PIECE_NBYTES = 32 << 10  # starts of 0.15 ms there: a call of 4 MiB 1.03, a queue of 8 of them 1.05
# Chunks are cut in halves at least, unless those would be shorter: a rank hands one on while the other comes.
# tcp grants no shorter ones: late_join of 4 MiB in 182 chunks there 1.02 of the time whole, 1.25 in halves
LEAST_HALF_NBYTES = 16 << 10
# The part of a start-up time that counts where the next message is posted before the last has come.
OVERLAPPED = 0.1  # what is left is the executor's own work
# The same where chunks of a late-rank algorithm are counted: each takes a core that work on every rank.
OF_A_CHUNK = 0.4  # some 60 us of starts of 0.15 ms: a rank's CPU time there 0.05 s a call of 4 MiB, with 0.1 0.08
# What takes a start is a message of so many bytes: an empty one is over so soon that what it took varies by half
# from one measurement to the next, and pieces with it.
START_NBYTES = 4 << 10  # 8 hosts on 2 cores: 0.35 to 0.39 ms; empty messages 0.23 to 0.58
# From the least size of a model's last piece to the greatest one that was measured.
LARGE = 4  # the largest sizes that are measured, 1 and 4 MiB


def start_s(model: CostModel) -> float:
    """What it takes to start a message, s, steadier than alpha."""
    return float(model.message_s(START_NBYTES)) if model.pieces else model.alpha_s


def sustained(model: CostModel, part: float | None = None) -> CostModel:
    """`model` for long series of messages that are posted ahead: one line, with a `part` of a start.

    Where nothing can be posted ahead, with all of it.
    """
    # Of about the largest that was measured: smaller ones may have had caches, or the credit of a token bucket.
    nbytes = LARGE * model.pieces[-1].nbytes if model.pieces else 1.0
    slope = model.pieces[-1].beta_s_per_byte if model.pieces else 0.0
    beta = max(slope, (float(model.message_s(nbytes)) - model.alpha_s) / nbytes)
    part = 1.0 if model.in_rounds else OVERLAPPED if part is None else part
    alpha_s = part * start_s(model)
    return CostModel(alpha_s, beta, model.gamma_s_per_byte, (), model.serial_messages, model.in_rounds)


def over_nodes(model: CostModel, inside: Sequence[CostModel]) -> CostModel:
    """`model`, of messages between nodes, with starts as long as those `inside` nodes, each of which goes with some.

    It was measured by one rank of each node; where all ranks send they share cores.
    """
    extra_s = max([0.0, *(start_s(each) - start_s(model) for each in inside)])
    pieces = tuple(piece._replace(alpha_s=piece.alpha_s + extra_s) for piece in model.pieces)
    return replace(model, alpha_s=model.alpha_s + extra_s, pieces=pieces)


def bytes_of_starts(model: CostModel, starts: float) -> float:
    """Bytes that move in the time of `starts` start-ups; without end where a byte costs nothing."""
    return _bytes_within(model, starts * start_s(model))


def _bytes_within(model: CostModel, time_s: float) -> float:
    beta = sustained(model).beta_s_per_byte
    return time_s / beta if beta else float("inf")


def traffic_of(
    schedule: CollectiveSchedule, chunked: bool, nodes: Nodes | None = None, stream: bool | None = None
) -> Traffic:
    """The Traffic of `schedule`, between `nodes` if there are some; `chunked`: its algorithm takes any chunk count.

    Args:
        stream: whether all that a rank receives comes from one peer, where `schedule` is the part of one rank.
    """
    if schedule.late_rank is not None or schedule.joins:
        return EXCHANGES if not chunked else PIECES if nodes is None else CROSSINGS
    if stream is not None:
        return STREAM if stream else ROUNDS
    src, dst = schedule.src, schedule.dst
    if nodes is not None:
        node_of = np.zeros(schedule.world_size, np.int64)
        for node, ranks in enumerate(nodes):
            node_of[list(ranks)] = node
        crosses = node_of[src] != node_of[dst]
        src, dst = src[crosses], dst[crosses]
    one = np.zeros(schedule.world_size, schedule.src.dtype)
    one[dst] = src
    return STREAM if (one[dst] == src).all() else ROUNDS


def segment_nbytes(model: CostModel | None, chunk_nbytes: int, traffic: Traffic = ROUNDS, sharers: int = 1) -> int:
    """Bytes of a cell of a chunk of `chunk_nbytes`, where up to `sharers` share a NIC; all ranks must use the same."""
    most, least = SEGMENT_NBYTES, LEAST_HALF_NBYTES
    if model is not None and traffic == CROSSINGS:
        piece = max(least, piece_nbytes(model) // sharers)
        most = min(most, max(least, -(-chunk_nbytes // max(1, chunk_nbytes // piece))))
    elif model is not None and traffic != EXCHANGES:
        ideal = bytes_of_starts(model, SEGMENT_STARTS)
        if traffic == STREAM:
            ideal = max(bytes_of_starts(model, STREAM_STARTS), _bytes_within(model, LEAST_STREAM_S))
            ideal = max(ideal, chunk_nbytes / STREAM_SEGMENTS)
        most = int(min(most, max(ideal, LEAST_SEGMENT_NBYTES)))
        if traffic == PIECES:
            half = -(-chunk_nbytes // 2)
            most = min(most, piece_nbytes(model), half if half >= least else max(least, chunk_nbytes))
    return max(most, -(-chunk_nbytes // MAX_SEGMENTS))


def queued_nbytes(schedule: CollectiveSchedule, *, is_whole: bool) -> int:
    """Bytes of a cell of `schedule` where its messages are queued on a stream; all ranks must use the same.

    Args:
        is_whole: it is that of all ranks, not one's part.
    """
    most = schedule.world_size - 1
    if is_whole:
        adds = np.flatnonzero(schedule.op == REDUCE)
        round_of = np.searchsorted(schedule.offsets, adds, side="right")
        most = int(np.bincount(round_of * schedule.world_size + schedule.dst[adds], minlength=1).max())
    room = QUEUED_SCRATCH_NBYTES // (2 * max(1, most))
    # Slots of scratch are of powers of two (execute/scratch.py).
    return max(SEGMENT_NBYTES, min(QUEUED_NBYTES, 1 << (room.bit_length() - 1)))


def piece_nbytes(model: CostModel) -> int:
    """Bytes of a message of a late-rank algorithm, at most."""
    ideal = bytes_of_starts(model, LOADED_STARTS) / CREDITS
    return int(max(LEAST_PIECE_NBYTES, min(ideal, SEGMENT_NBYTES)))


def credits(
    model: CostModel | None, transport: Transport, nbytes: int, traffic: Traffic = PIECES, sharers: int = 1
) -> int | None:
    """Receives of up to `nbytes` that are posted at once, where `sharers` ranks share a NIC; None: any number.

    So few that two flows do not meet at one ingress for long, and that queues are short: what one way has in its queue
    delays what grants the other way's next messages (2 hosts of 4 ranks at 200 Mbit/s, 8 MiB late join, messages of 27
    KB: 1 credit a rank 1.07, 2 1.20, 4 1.40, 64 1.56). None where posting a receive
    does not pace its sender, or does at no cost (threads, and streams through memory), and without a model.
    """
    paced_nbytes = transport.capabilities.receiver_paced_nbytes
    if model is None or not paced_nbytes or nbytes < paced_nbytes:
        return None
    return window(model, nbytes, traffic, sharers)


def window(model: CostModel, nbytes: int, traffic: Traffic, sharers: int = 1) -> int | None:
    """The `credits` of a transport on which posting a receive paces its sender."""
    if traffic == ROUNDS or (traffic == STREAM and segment_nbytes(model, 0, STREAM) == SEGMENT_NBYTES):
        return None
    if traffic not in (PIECES, CROSSINGS):
        return CREDITS
    return max(1, CREDITS * piece_nbytes(model) // (nbytes * sharers))
