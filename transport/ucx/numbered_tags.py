"""Tags of messages over UCX: which ranks, which tag, which message of its lane, and how long.

A UCX receive does not filter its source, so the tag holds it: 64 bits of a keyed hash of source, destination and tag.
A client without the job's secret cannot make a tag that a receive waits for. Two equal tags would mix up messages: of a
million in use at one rank, with a probability of 3e-8.

UCXX does not report how long a received message is. So the lowest bits of a tag hold the message's number on its lane
and its length. A message of another length matches no receive. UcxTransport.check_peers finds it among the unmatched
messages, and the receive then raises an error with both lengths.
"""

import hashlib
import struct
from collections import defaultdict
from typing import Any, TypeAlias

from lanterne.transport.base import COMMUNICATOR_BITS, LANE_BITS, ClosedIds

# Of a base.make_tag().
TAG_BITS = COMMUNICATOR_BITS + LANE_BITS
# In the lowest bits: the length modulo the largest prime below 2**24, and above it the message's number.
LENGTH_BITS, LENGTHS, NUMBERS = 24, (1 << 24) - 3, (1 << 16) - 1

# (source, destination, tag) -> [its hash, how many messages were posted].
Lanes: TypeAlias = dict[tuple[int, int, int], list[int]]


def ucx_tag(secret: bytes, source: int, destination: int, tag: int) -> int:
    """Return the 64-bit hash of base.make_tag()'s `tag` between two ranks.

    Args:
        secret: at most 64 bytes, the same on all ranks.
    """
    message = struct.pack("<qqq", source, destination, tag)
    return int.from_bytes(hashlib.blake2b(message, digest_size=8, key=secret).digest(), "little")


class NumberedTags(ClosedIds):
    """The tags of all messages of a rank, by communicator id.

    Args:
        ucxx: the module.
        secret: as of ucx_tag.
    """

    def __init__(self, ucxx: Any, secret: bytes, rank: int) -> None:
        super().__init__()
        self._ucxx = ucxx
        self._secret = secret
        self._rank = rank
        self._sent: defaultdict[int, Lanes] = defaultdict(dict)
        self._received: defaultdict[int, Lanes] = defaultdict(dict)
        self._any_length: Any = ucxx.UCXXTagMask((1 << 64) - (1 << LENGTH_BITS))

    def next_sent(self, peer: int, tag: int, nbytes: int) -> Any:
        """Return the UCXXTag of the next message of `nbytes` bytes to rank `peer` under `tag`."""
        return self._next(self._sent[tag >> LANE_BITS], (self._rank, peer, tag), nbytes)

    def next_received(self, peer: int, tag: int, nbytes: int) -> Any:
        """Return the UCXXTag of the next message of `nbytes` bytes from rank `peer` under `tag`."""
        return self._next(self._received[tag >> LANE_BITS], (peer, self._rank, tag), nbytes)

    def _next(self, lanes: Lanes, key: tuple[int, int, int], nbytes: int) -> Any:
        lane = lanes.get(key)
        if lane is None:
            lane = lanes[key] = [ucx_tag(self._secret, *key), 0]
        number = lane[1]
        lane[1] = number + 1
        return self._ucxx.UCXXTag(lane[0] ^ (number & NUMBERS) << LENGTH_BITS ^ nbytes % LENGTHS)

    def unmatched_nbytes(self, worker: Any, tag: Any) -> int | None:
        """Return the length of the message that has arrived in place of that of `tag`; None: none has."""
        found = worker.tag_probe(tag, self._any_length)
        return found.length if found.matched else None

    def add(self, communicator_id: int) -> None:
        super().add(communicator_id)
        self._restart(communicator_id)

    def discard(self, communicator_id: int) -> None:
        super().discard(communicator_id)
        self._restart(communicator_id)

    def _restart(self, communicator_id: int) -> None:
        """Number the messages of the next communicator with this id from 0 again."""
        self._sent.pop(communicator_id, None)
        self._received.pop(communicator_id, None)
