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
from lanterne.collectives.schedule.ir import CollectiveSchedule
from lanterne.transport.base import Transport


class Traffic(Enum):
    """How the messages of an algorithm meet."""

    ROUNDS = "partners that change with the rounds"
    STREAM = "all that a rank receives comes from one peer"
    PIECES = "of a late-rank algorithm of any number of chunks: they must not meet at a port"
    # Cut into pieces, those of one round meet those of the next (16 MiB stragglar, 8 hosts at 200 Mbit/s: 1.70 times a
    # buffer's time with halves of a chunk and two credits, 2.0 with one or any number, 2.2 with 250 KB, 2.8 with 50).
    EXCHANGES = "of another late-rank algorithm: whole chunks, with partners that change every round"


ROUNDS, STREAM, PIECES, EXCHANGES = Traffic

# Cells of this size overlap transfer with reduction. Smaller ones cost more than they hide (mpi, 4 ranks on 2 cores, 16
# MiB, idle cores: 2 MiB 0.72 of MPI_Allreduce's time, 1 MiB 0.79, 512 KiB 0.9); chunks are cut into at most
# MAX_SEGMENTS.
SEGMENT_NBYTES = 2 << 20
MAX_SEGMENTS = 64
# On slower networks they are such that their bytes take this many times their start (16 MiB ring, 8 hosts at 200
# Mbit/s, multiples of a buffer's time: 2 MiB 2.06, 1 MiB 1.95, 512 and 256 KiB 1.79 to 1.86; the bound is 1.75).
SEGMENT_STARTS = 32
LEAST_SEGMENT_NBYTES = 64 << 10
# Where all that a rank receives comes from one peer, shorter ones, CREDITS of them under way: what a rank was granted
# stands in the queue before its own grants, so that with more of it one that begins 2 ms after its neighbours loses 10
# to 40, and all behind it (as above: 50 to 128 KB 1.78 to 1.79). But not so short that the executor's own work, some
# 0.1 ms a message, counts. Exchanges with many peers lose by it (16 MiB rhd 1.84 to 1.94).
STREAM_STARTS, LEAST_STREAM_S = 12, 1e-3
# Under load a network takes several unloaded starts to answer, since what grants the next message queues behind bulk.
# So many of them times the bandwidth are the bytes that a rank of a late-rank algorithm has under way to it, in two
# messages, one of them as yet on its way to be granted. 16 MiB late_join as above, bytes under way: 75 KB 1.03 to 1.04,
# 100 KB 1.04, 150 KB 1.09 to 1.10, 225 KB 1.39.
LOADED_STARTS = 12
CREDITS = 2
LEAST_PIECE_NBYTES = 16 << 10
# The part of a start-up time that counts where the next message is posted before the last has come: what is left is the
# executor's own work.
OVERLAPPED = 0.1
# What takes a start is a message of so many bytes: an empty one is over so soon that what it took varies by half from
# one measurement to the next (8 hosts on 2 cores: 0.23 to 0.58 ms, 4 KiB 0.35 to 0.39), and pieces with it.
START_NBYTES = 4 << 10
# From the least size of a model's last piece to the greatest one that was measured.
LARGE = 4


def start_s(model: CostModel) -> float:
    """What it takes to start a message, s, steadier than alpha."""
    return float(model.message_s(START_NBYTES)) if model.pieces else model.alpha_s


def sustained(model: CostModel) -> CostModel:
    """`model` for long series of messages that are posted ahead: one line, with a part of a start."""
    # Of about the largest that was measured: smaller ones may have had caches, or the credit of a token bucket.
    nbytes = LARGE * model.pieces[-1].nbytes if model.pieces else 1.0
    beta = max(0.0, float(model.message_s(nbytes)) - model.alpha_s) / nbytes
    return CostModel(OVERLAPPED * start_s(model), beta, model.gamma_s_per_byte, (), model.serial_messages)


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
    if schedule.late_rank is not None:
        return PIECES if chunked else EXCHANGES
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


def segment_nbytes(model: CostModel | None, chunk_nbytes: int, traffic: Traffic = ROUNDS) -> int:
    """Bytes of a cell of a chunk of `chunk_nbytes`; all ranks must use the same."""
    most = SEGMENT_NBYTES
    if model is not None and traffic != EXCHANGES:
        ideal = bytes_of_starts(model, SEGMENT_STARTS)
        if traffic == STREAM:
            ideal = max(bytes_of_starts(model, STREAM_STARTS), _bytes_within(model, LEAST_STREAM_S))
        most = int(min(most, max(ideal, LEAST_SEGMENT_NBYTES)))
        if traffic == PIECES:
            most = min(most, piece_nbytes(model))
    return max(most, -(-chunk_nbytes // MAX_SEGMENTS))


def piece_nbytes(model: CostModel) -> int:
    """Bytes of a message of a late-rank algorithm, at most."""
    return int(max(LEAST_PIECE_NBYTES, min(bytes_of_starts(model, LOADED_STARTS) / CREDITS, SEGMENT_NBYTES)))


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
    if model is None or not paced_nbytes or nbytes < paced_nbytes or traffic == ROUNDS:
        return None
    if traffic == STREAM and segment_nbytes(model, 0, STREAM) == SEGMENT_NBYTES:
        return None
    return max(1, CREDITS * piece_nbytes(model) // (nbytes * sharers)) if traffic == PIECES else CREDITS
