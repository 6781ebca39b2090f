"""Well-formed UCX clients without a job's secret: what `evaluate strangers --transport ucx` sends to its ranks.

UCX's TCP layer takes whoever reaches its port, and an address can be made without having seen the rank's: it is that of
a worker here, with the other port put in. So what such a client sends does come; it must fit no receive. UCX itself is
not attacked here: its TCP layer can be made to write where a message says, which SECURITY.md tells.

Run as `python -c "from evaluation.ucx_strangers import main; main()" TRIES SEED PORT ...`, with UCX_TLS and
UCX_NET_DEVICES as the ranks have them; prints a JSON object of how many messages left, by their kind.
"""

import json
import os
import random
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from evaluation.strangers import ports_of
from lanterne.transport.base import BARRIER_TAG, make_tag
from lanterne.transport.ucx.worker import load_ucxx, make_worker

# Messages of a client before the next one, another worker, takes over.
TRIES_EACH = 10
# How long they may take to leave: the other end has to let UCX work, too.
LEAVE_S = 3.0
# By kind: bytes, of what leaves at once, and, from 8 KiB on, of what waits for a receive.
SIZES = {"nothing": 0, "a word": 8, "an array": 4096, "more than is expected": 65536}
# The tags that lanterne has before they are hashed, and any.
TAGS: dict[str, Callable[[random.Random], int]] = {
    "plain tag": lambda rng: make_tag(rng.randrange(4), rng.randrange(64)),
    "a barrier's": lambda rng: BARRIER_TAG | rng.randrange(4),
    "any tag": lambda rng: rng.getrandbits(64),
}


class UcxStranger:
    """A UCX client that can send to any worker of this host whose port it knows."""

    def __init__(self) -> None:
        self._ucxx, self._array = load_ucxx()
        _, self._worker = make_worker(self._ucxx, {})
        self._address = bytes(self._worker.address)
        self._port = _port_in(self._address)
        self._sent: list[tuple[str, bytearray, Any, Any]] = []

    def send(self, port: int, tag: int, message: bytearray, kind: str) -> None:
        """Begin to send to who listens on `port`."""
        forged = self._address.replace(self._port, struct.pack(">H", port))
        with suppress(self._ucxx.UCXError):
            address = self._ucxx.UCXAddress.create_from_buffer(forged)
            end = self._ucxx.UCXEndpoint.create_from_worker_address(self._worker, address, True)
            request = end.tag_send(self._array(memoryview(message)), self._ucxx.UCXXTag(tag))
            self._sent.append((kind, message, end, request))

    def leave(self, limit_s: float) -> Counter[str]:
        """How many of each kind have left, after at most `limit_s`; what waits for a receive has left as a question."""
        until_s = time.monotonic() + limit_s
        while not all(request.completed for *_, request in self._sent) and time.monotonic() < until_s:
            self._worker.progress_once()
        left = Counter[str]()
        for kind, message, _, request in self._sent:
            left[kind] += bool(request.completed) or len(message) > SIZES["an array"]
        return left


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
    left = Counter[str]()
    while tries > 0:
        stranger = UcxStranger()
        for _ in range(min(tries, TRIES_EACH)):
            size, tag = rng.choice(list(SIZES)), rng.choice(list(TAGS))
            message = bytearray(rng.randbytes(SIZES[size]))
            stranger.send(rng.choice(ports), TAGS[tag](rng), message, f"{size}, {tag}")
        left += stranger.leave(LEAVE_S)
        tries -= TRIES_EACH
    print(json.dumps(left), flush=True)
