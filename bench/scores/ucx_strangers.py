"""Well-formed UCX clients without a job's secret: what `bench strangers --transport ucx` sends to its ranks.

UCX's TCP layer takes whoever reaches its port, and an address can be made without having seen the rank's: it is that of
a worker here, with the other port put in. So what such a client sends does come; it must fit no receive. UCX itself is
not attacked here: its TCP layer can be made to write where a message says, which SECURITY.md tells.

Run as `python -c "from lanterne.bench.scores.ucx_strangers import main; main()" TRIES SEED PORT ...`, with UCX_TLS and
UCX_NET_DEVICES as the ranks have them; prints a JSON object of how many messages left, by their kind.
"""

import json
import os
import random
import struct
import sys
import time
from collections import Counter
from typing import Any

from lanterne.bench.scores.strangers import ports_of
from lanterne.transport.base import make_tag
from lanterne.transport.ucx.over_ucx import INTERNAL
from lanterne.transport.ucx.worker import load_ucxx, make_worker

# Tries of a client before the next one, another worker, takes over.
TRIES_EACH = 10
# How long a message may take to leave: the other end has to let UCX work, too.
LEAVE_S = 1.0
# By kind: bytes, of what may leave at once, or waits for a receive.
SIZES = {"nothing": 0, "a word": 8, "an array": 8192, "more than is expected": 65536}
# The tags that lanterne has before they are hashed, and any.
TAGS = {
    "plain tag": lambda rng: make_tag(rng.randrange(4), rng.randrange(64)),
    "a barrier's": lambda rng: rng.randrange(4) | INTERNAL,
    "any tag": lambda rng: rng.getrandbits(64),
}


class UcxStranger:
    """A UCX client that can send to any worker of this host whose port it knows."""

    def __init__(self) -> None:
        self._ucxx, self._array = load_ucxx()
        _, self._worker = make_worker(self._ucxx, {})
        self._address = bytes(self._worker.address)
        self._port = _port_in(self._address)
        self._kept: list[Any] = []

    def send(self, port: int, tag: int, message: bytearray) -> bool:
        """Send to who listens on `port`; whether it has left within LEAVE_S."""
        forged = self._address.replace(self._port, struct.pack(">H", port))
        try:
            address = self._ucxx.UCXAddress.create_from_buffer(forged)
            end = self._ucxx.UCXEndpoint.create_from_worker_address(self._worker, address, True)
            request = end.tag_send(self._array(memoryview(message)), self._ucxx.UCXXTag(tag))
        except self._ucxx.UCXError:
            return False
        self._kept.append((message, end, request))
        until_s = time.monotonic() + LEAVE_S
        while not request.completed and time.monotonic() < until_s:
            self._worker.progress_once()
        # What waits for a receive has left, too: as a question.
        return bool(request.completed) or len(message) > SIZES["an array"]


def _port_in(address: bytes) -> bytes:
    """The two bytes of a worker's address that are a port on which this process listens."""
    found = [struct.pack(">H", port) for _, port in ports_of([os.getpid()])]
    inside = [port for port in found if address.count(port) == 1]
    if not inside:
        raise RuntimeError("ucx stranger: no port in its own address; is UCX_TLS=tcp,self set?")
    return inside[-1]


def main() -> None:
    """Send TRIES messages; see the module."""
    tries, seed, *ports = map(int, sys.argv[1:])
    rng = random.Random(seed)
    left: Counter[str] = Counter()
    stranger = UcxStranger()
    for number in range(tries):
        if number % TRIES_EACH == TRIES_EACH - 1:
            stranger = UcxStranger()
        size, tag = rng.choice(list(SIZES)), rng.choice(list(TAGS))
        if stranger.send(rng.choice(ports), TAGS[tag](rng), bytearray(rng.randbytes(SIZES[size]))):
            left[f"{size}, {tag}"] += 1
    print(json.dumps(left), flush=True)
