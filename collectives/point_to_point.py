"""Messages between two members of a communicator: what `send`, `recv` and `send_recv` start."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from lanterne.collectives.execute.arguments import check_whole
from lanterne.collectives.execute.communicator_base import CommunicatorBase
from lanterne.collectives.execute.plans import USER_LANES
from lanterne.collectives.execute.requests import MessageRequest
from lanterne.errors import InputError
from lanterne.kernels.arrays import Array, Stream, is_device_array
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
        check_whole("tag: got", tag, 0, len(USER_LANES) - 1)
        ends = make_tag(comm.communicator_id, USER_LANES[tag])
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
                region = comm.transport.register(array)
                readonly = region.buffer is not None and region.buffer.readonly
            if verb is Recv and readonly:
                raise InputError("recv: got a read-only array, expected a writable one")
            ops.append(verb(region, 0, region.nbytes, comm.ranks[peer], ends))
        return post, tuple(ops)

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
