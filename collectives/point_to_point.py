"""Messages between two members of a communicator: what `send`, `recv` and `send_recv` start."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np

from lanterne.collectives.execute.arguments import check_whole
from lanterne.collectives.execute.communicator_base import CommunicatorBase
from lanterne.collectives.execute.requests import MessageRequest
from lanterne.collectives.message_lanes import BOARD_LANES, USER_LANES, Lane
from lanterne.errors import InputError
from lanterne.kernels.arrays import Array, Stream, host_array, is_device_array
from lanterne.transport.base import Recv, Request, Send, make_tag

Verb: TypeAlias = type[Send] | type[Recv]
Operations: TypeAlias = tuple[Send | Recv, ...]
Post: TypeAlias = Callable[[Operations], Request]

# So many open messages are kept before the first look for complete ones.
LEAST_SWEEP = 16


class StartedMessages:
    """The messages that a communicator has started."""

    def __init__(self, comm: CommunicatorBase) -> None:
        self._comm = comm
        # Those not known to be complete: they hold the arrays, whatever becomes of the request.
        self._open: list[MessageRequest] = []
        self._sweep_at = LEAST_SWEEP

    def start(self, verbs: Sequence[tuple[Verb, Array]], peer: int, tag: int, stream: Stream) -> MessageRequest:
        """Start what `verbs` says, (Send or Recv, array) each, together: over nccl one would wait for the other.

        Raises:
            InputError: a peer, tag, array or stream that cannot be.
        """
        self._comm.check_open()
        return self._post(*self._operations(verbs, peer, tag, stream))

    def prepare(self, verb: Verb, array: Array, peer: int, tag: int) -> Callable[[], MessageRequest]:
        """A function that starts the message `verb`, `array` each time it is called, and returns its MessageRequest.

        What `start` checks and registers each time is checked and registered here; `start` takes twice as long (0.2 ms)
        where a program's own work has swept the caches.

        Raises:
            InputError: as `start`; or a device array, whose messages wait for a stream each time.
        """
        if is_device_array(array):
            raise InputError(f"prepare_{verb.__name__.lower()}: got a device array, expected host memory")
        return partial(self._again, *self._operations(((verb, array),), peer, tag, None))

    def _again(self, post: Post, ops: Operations) -> MessageRequest:
        self._comm.check_open()
        return self._post(post, ops)

    def _operations(
        self, verbs: Sequence[tuple[Verb, Array]], peer: int, tag: int, stream: Stream
    ) -> tuple[Post, Operations]:
        """What posts the messages, and the operations that it posts."""
        comm = self._comm
        side = comm.device_side(verbs[0][1]) if is_device_array(verbs[0][1]) else None
        if stream is not None and side is None:
            raise InputError("stream: got one for a host array, expected None")
        check_whole("peer: got", peer, 0, comm.world_size - 1)
        ends = make_tag(comm.communicator_id, self._lane(tag))
        ops: list[Send | Recv] = []
        post: Post = comm.transport.post
        for verb, array in verbs:
            name = verb.__name__.lower()
            if side is not None:
                view = side.adopt(name, array)
                post = side.poster(view, stream)
                region, readonly = side.transport.register(view), view.readonly
            elif is_device_array(array):
                raise InputError(f"{name}: got a device array, expected host memory like the other")
            else:
                region = comm.transport.register(array if type(array) is np.ndarray else host_array(array, name))
                readonly = region.buffer is not None and region.buffer.readonly
            if verb is Recv and readonly:
                raise InputError("recv: got a read-only array, expected a writable one")
            ops.append(verb(region, 0, region.nbytes, comm.ranks[peer], ends))
        return post, tuple(ops)

    def _lane(self, tag: int) -> int:
        """Return the lane of messages with `tag`: the upper half of what the transport has, but for the least tags."""
        if type(tag) is Lane:
            return tag
        first = 1 << self._comm.transport.capabilities.lane_bits - 1
        most = first if first >= BOARD_LANES.stop else len(USER_LANES)
        check_whole("tag: got", tag, 0, most - 1)
        return USER_LANES[tag] if tag < len(USER_LANES) else first + tag

    def post(self, ops: Sequence[Send | Recv]) -> MessageRequest:
        """Start these operations of host memory, together."""
        return self._post(self._comm.transport.post, tuple(ops))

    def _post(self, post: Post, ops: Operations) -> MessageRequest:
        comm = self._comm
        with comm.lock, comm.failing:
            request = MessageRequest(comm, post(ops))
            if len(self._open) >= self._sweep_at:
                self._open = [message for message in self._open if not message.done and not message._poll()]
                # However many are open, a start looks at two of them on average.
                self._sweep_at = max(LEAST_SWEEP, 2 * len(self._open))
            self._open.append(request)
        return request
