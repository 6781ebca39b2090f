"""Messages between two members of a communicator: what `send`, `recv` and `send_recv` start."""

from functools import partial

from lanterne.collectives.execute.arguments import check_whole
from lanterne.collectives.execute.plans import USER_LANES
from lanterne.collectives.execute.requests import MessageRequest
from lanterne.errors import InputError
from lanterne.kernels.arrays import is_device_array
from lanterne.transport.base import Recv, make_tag

# So many open messages are kept before the first look for complete ones.
LEAST_SWEEP = 16


class StartedMessages:
    """The messages that `comm`, a Communicator, has started."""

    def __init__(self, comm):
        self._comm = comm
        # Those not known to be complete: they hold the arrays, whatever becomes of the request.
        self._open, self._sweep_at = [], LEAST_SWEEP

    def start(self, verbs, peer, tag, stream):
        """Start what `verbs` says, (Send or Recv, array) each, together: over nccl one would wait for the other.

        Returns:
            a MessageRequest.

        Raises:
            InputError: a peer, tag, array or stream that cannot be.
        """
        self._comm.check_open()
        return self._post(*self._operations(verbs, peer, tag, stream))

    def prepare(self, verb, array, peer, tag):
        """A function that starts the message `verb`, `array` each time it is called, and returns its MessageRequest.

        What `start` checks and registers is checked and registered here.

        Raises:
            InputError: as `start`; or a device array, whose messages wait for a stream each time.
        """
        if is_device_array(array):
            raise InputError(f"prepare_{verb.__name__.lower()}: got a device array, expected host memory")
        return partial(self._again, *self._operations(((verb, array),), peer, tag, None))

    def _again(self, post, ops):
        self._comm.check_open()
        return self._post(post, ops)

    def _operations(self, verbs, peer, tag, stream):
        """What posts the messages, and the operations that it posts."""
        comm = self._comm
        side = comm.device_side(verbs[0][1]) if is_device_array(verbs[0][1]) else None
        if stream is not None and side is None:
            raise InputError("stream: got one for a host array, expected None")
        check_whole("peer: got", peer, 0, comm.world_size - 1)
        check_whole("tag: got", tag, 0, len(USER_LANES) - 1)
        ends, ops, post = make_tag(comm.communicator_id, USER_LANES[tag]), [], comm.transport.post
        for verb, array in verbs:
            name = verb.__name__.lower()
            if side is not None:
                array = side.adopt(name, array)
                post = side.poster(array, stream)
            elif is_device_array(array):
                raise InputError(f"{name}: got a device array, expected host memory like the other")
            region = (side or comm).transport.register(array)
            if verb is Recv and (region.buffer.readonly if side is None else array.readonly):
                raise InputError("recv: got a read-only array, expected a writable one")
            ops.append(verb(region, 0, region.nbytes, comm.ranks[peer], ends))
        return post, tuple(ops)

    def _post(self, post, ops):
        comm = self._comm
        with comm.failing:
            request = MessageRequest(comm, post(ops))
            if len(self._open) >= self._sweep_at:
                self._open = [message for message in self._open if not message.done and not message.poll()]
                # However many are open, a start looks at two of them on average.
                self._sweep_at = max(LEAST_SWEEP, 2 * len(self._open))
        self._open.append(request)
        return request
