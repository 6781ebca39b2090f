"""Writes schedules as Chakra execution traces, a file for each rank, which simulators of others (ASTRA-sim) replay.

A node is a message: it sends, or receives, all chunks that go from one rank to another in a round. It depends on all
messages of the rank's round before, as in the cost model (cost.py) and in our flows, so that a judge judges the same;
sums are free. A message is known at both ends by its ranks and its tag, the round.

Form: schema/protobuf/et_def.proto of github.com/mlcommons/chakra: GlobalMetadata, then a Node after the other, each a
protocol buffer behind its length.
"""

from collections.abc import Iterable

import numpy as np

from lanterne.collectives.schedule.check_schedule import CheckedSchedule
from lanterne.collectives.schedule.cost import chunk_nbytes

VERSION = "0.0.4"
SEND, RECV = 5, 6
# Fields of a Node, and of an AttributeProto.
ID, NAME, TYPE, DATA_DEPS, ATTR = 1, 2, 3, 5, 10
INT32, INT64, BOOL = 7, 9, 27


def to_chakra(checked: CheckedSchedule, nbytes: float) -> list[bytes]:
    """The trace of each rank, for buffers of `nbytes`, the larger of a rank's two."""
    schedule = checked.schedule
    p, unit = schedule.world_size, chunk_nbytes(schedule, nbytes)
    round_of = np.repeat(np.arange(schedule.num_rounds), np.diff(schedule.offsets))
    keys, chunks = np.unique((round_of * p + schedule.src) * p + schedule.dst, return_counts=True)
    traces = [[_framed(_text(1, VERSION))] for _ in range(p)]
    # By rank: the round that it is in, the nodes of that one, and of the one before.
    rounds = [-1] * p
    mine: list[list[int]] = [[] for _ in range(p)]
    before = mine.copy()
    for key, count in zip(keys.tolist(), chunks.tolist(), strict=True):
        index, src, dst = key // p**2, key // p % p, key % p
        for rank, kind in ((src, SEND), (dst, RECV)):
            if rounds[rank] != index:
                rounds[rank], before[rank], mine[rank] = index, mine[rank], []
            number = len(traces[rank]) - 1
            mine[rank].append(number)
            traces[rank].append(_framed(_node(number, kind, before[rank], index, src, dst, round(count * unit))))
    return [b"".join(trace) for trace in traces]


def _node(number: int, kind: int, after: Iterable[int], index: int, src: int, dst: int, nbytes: int) -> bytes:
    what = f"send to {dst}" if kind == SEND else f"receive from {src}"
    fields = [
        _number(ID, number),
        _text(NAME, f"round {index}: {what}"),
        _number(TYPE, kind),
        _packed(DATA_DEPS, after),
        _attribute("is_cpu_op", BOOL, 0),
        _attribute("comm_src", INT32, src),
        _attribute("comm_dst", INT32, dst),
        _attribute("comm_tag", INT32, index),
        _attribute("comm_size", INT64, nbytes),
    ]
    return b"".join(fields)


def _attribute(name: str, kind: int, value: int) -> bytes:
    return _bytes(ATTR, _text(1, name) + _number(kind, value))


# -- protocol buffers: a field is its number and wire type (0: a number, 2: bytes behind their length), then its value


def _varint(value: int) -> bytes:
    """`value`, 0 or more, seven bits a byte, the lowest first; all but the last have the high bit."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _framed(value)


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _packed(field: int, values: Iterable[int]) -> bytes:
    together = b"".join(map(_varint, values))
    return _bytes(field, together) if together else b""


def _framed(message: bytes) -> bytes:
    return _varint(len(message)) + message
