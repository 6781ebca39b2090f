"""The Communicator: collectives and messages between the ranks of a job, named and ordered as in cupyx.distributed.

    import lanterne
    comm = lanterne.init()
    comm.all_reduce(x, y)

One thread per communicator. All members make the same calls in the same order.
"""

import numpy as np

from ..errors import InputError, PeerFailed, TransportError
from ..transport.base import COMMUNICATOR_BITS, Recv, Send, make_tag
from ..transport.pauses import Pauses
from . import native
from .arguments import resolve
from .control import Control
from .jobs import init, spawn
from .late import LateRanks, LateRequest
from .plans import CONTROL_LANE, USER_LANES, Plans, offered_algorithms
from .requests import CallRequest, Failing, MessageRequest
from .scratch import Scratch
from .tuning import Tuning

__all__ = ["Communicator", "init", "spawn"]


class Communicator:
    """A group of ranks that communicate.

    Args:
        transport: the Transport of this rank.
        ranks: transport ranks of the members, in rank order; None for all.
        communicator_id: 16 bits, equal on all members, unlike that of any other group with a member of this one.
        used_ids: the ids in use on this transport, shared by all its communicators.
        ranks_here: how many ranks of the job run on this host; None: as many as members.
        closes: objects to close with this communicator, in order.
        board_key: of its arrival board: equal on all members, unlike that of any other communicator of the job.

    Attributes: `rank`; `world_size`; `transport`; `timeout_s`, the default of waits; `tuning`, what "auto" goes by;
    `deterministic`, False: where it matters, an all_reduce by "auto" finds out who is late (late.py), and so in which
    order to sum; set it alike on all ranks.

    Every collective has a blocking form and a started one (`start_all_reduce`, ...), which returns a request with
    `wait` and `test`. Calls run in the order in which they were started, one after the other, and advance only while
    one of them is waited for or tested. Arrays are C-contiguous NumPy arrays, or other host buffers; `stream` is for
    device arrays, which are not taken yet. Ranks in errors are those of the transport.

    Options of every collective:
        algorithm: a name of `algorithms(collective)`, or "auto".
        timeout_s: seconds to wait at most; None for the communicator's. "native" only has one if it is given.
        dtype: "bfloat16" where the arrays are uint16.
        late_rank, num_chunks: as in collectives/registry.py.
        segment_nbytes: bytes of a message, at most; None for the executor's choice.
        credits: receives posted at once, at most; None: any number (compile.py says where it helps).

    Raises, in every call:
        InputError: arrays, op or algorithm that cannot be (nothing was sent then); another rank called with other
            ones (then the communicator is closed).
        TransportTimeout, PeerFailed: a rank did not come in time, or died; names it. The communicator is closed, unless
            the call was one that finds out who is late, and nobody had begun with the missing rank.
    """

    def __init__(
        self, transport, ranks=None, communicator_id=0, used_ids=None, ranks_here=None, closes=(), board_key="0"
    ):
        self.transport = transport
        self.ranks = tuple(range(transport.world_size)) if ranks is None else tuple(ranks)
        self.rank = self.ranks.index(transport.rank)
        self.world_size = len(self.ranks)
        self.timeout_s = transport.timeout_s
        self.communicator_id = communicator_id
        self.control = Control(transport, self.ranks, self.rank, make_tag(communicator_id, CONTROL_LANE))
        self._used_ids = set() if used_ids is None else used_ids
        self._used_ids.add(communicator_id)
        self._closes = closes
        self.scratch = Scratch(transport)
        self._plans = Plans(self)
        self.tuning = Tuning(self)
        self.deterministic = False
        self.late = LateRanks(self, board_key)
        # Calls not yet complete, in order; after a failure they stay, since the transport may still use their buffers.
        self._calls = []
        # Messages not known to be complete: they hold the arrays, whatever becomes of the request.
        self._messages = []
        self._number = 0
        self._failure = None
        # A context in which an error of lanterne ends this communicator.
        self.failing = Failing(self)
        self.pauses = Pauses(self.world_size if ranks_here is None else ranks_here)
        self.native = None

    # -- collectives

    def all_reduce(self, in_array, out_array, op="sum", stream=None, **options):
        """out_array = in_array of rank 0 op in_array of rank 1 op ..., the same bits on every rank.

        Args:
            in_array, out_array: (count,), or any other shape; one array or two that do not overlap.
            op: "sum", "prod", "min", "max", or "mean" (of floats: the sum, divided by world_size).
        """
        self._call("all_reduce", in_array, out_array, op=op, stream=stream, **options)

    def start_all_reduce(self, in_array, out_array, op="sum", stream=None, **options):
        """As `all_reduce`, but returns a request."""
        return self._start("all_reduce", in_array, out_array, op=op, stream=stream, **options)

    def reduce_scatter(self, in_array, out_array, op="sum", stream=None, **options):
        """out_array = this rank's part of the reduction.

        Args:
            in_array: (world_size * count,).
            out_array: (count,), separate or in place: this rank's part of in_array, which is the only one that changes.
        """
        self._call("reduce_scatter", in_array, out_array, op=op, stream=stream, **options)

    def start_reduce_scatter(self, in_array, out_array, op="sum", stream=None, **options):
        """As `reduce_scatter`, but returns a request."""
        return self._start("reduce_scatter", in_array, out_array, op=op, stream=stream, **options)

    def all_gather(self, in_array, out_array, stream=None, **options):
        """out_array = the in_arrays of all ranks, in order.

        Args:
            in_array: (count,) of any dtype, separate or in place: this rank's part of out_array.
            out_array: (world_size * count,).
        """
        self._call("all_gather", in_array, out_array, stream=stream, **options)

    def start_all_gather(self, in_array, out_array, stream=None, **options):
        """As `all_gather`, but returns a request."""
        return self._start("all_gather", in_array, out_array, stream=stream, **options)

    def broadcast(self, in_out_array, root=0, stream=None, **options):
        """in_out_array = that of rank `root`; any dtype."""
        self._call("broadcast", in_out_array, in_out_array, root=root, stream=stream, **options)

    def start_broadcast(self, in_out_array, root=0, stream=None, **options):
        """As `broadcast`, but returns a request."""
        return self._start("broadcast", in_out_array, in_out_array, root=root, stream=stream, **options)

    def reduce(self, in_array, out_array, root=0, op="sum", stream=None, **options):
        """As `all_reduce`, for rank `root` only; out_array is not touched on the others and may be None."""
        self._call("reduce", in_array, out_array, op=op, root=root, stream=stream, **options)

    def start_reduce(self, in_array, out_array, root=0, op="sum", stream=None, **options):
        """As `reduce`, but returns a request."""
        return self._start("reduce", in_array, out_array, op=op, root=root, stream=stream, **options)

    def all_to_all(self, in_array, out_array, stream=None, **options):
        """Part r of out_array = this rank's part of rank r's in_array.

        Args:
            in_array, out_array: (world_size * count,) of any dtype; one array or two that do not overlap.
        """
        self._call("all_to_all", in_array, out_array, stream=stream, **options)

    def start_all_to_all(self, in_array, out_array, stream=None, **options):
        """As `all_to_all`, but returns a request."""
        return self._start("all_to_all", in_array, out_array, stream=stream, **options)

    def barrier(self, **options):
        """Return once every rank has called it."""
        self._call("barrier", _EMPTY, _EMPTY, **options)

    def algorithms(self, collective):
        """Names of the algorithms that `collective` can use here; "native" last, where the transport has one."""
        names = offered_algorithms(collective, self.world_size)
        return (*names, "native") if native.offers(self.transport, collective) else names

    def arrivals(self):
        """Who came last to the calls that found it out, how often, by how much: an Arrivals, the same on all ranks."""
        return self.late.arrivals.snapshot()

    def _call(self, collective, in_array, out_array, *, algorithm="auto", timeout_s=None, **options):
        if algorithm == "native" and timeout_s is None:
            self._drain()
            native.call(self, resolve(self, collective, in_array, out_array, algorithm=algorithm, **options))
            return
        self._start(collective, in_array, out_array, algorithm=algorithm, **options).wait(timeout_s)

    def _start(self, collective, in_array, out_array, **options):
        self._check_open()
        call = resolve(self, collective, in_array, out_array, **options)
        policy = None
        if collective == "all_reduce" and options.get("algorithm", "auto") == "auto" and not options.get("num_chunks"):
            policy = self.late.policy(collective, call.in_array.nbytes)
        if policy is not None:
            request = LateRequest(self, call, policy)
        elif call.algorithm == "native":
            request = native.start(self, call)
        else:
            request = self._planned(call)
        with self.failing:
            self._number += 1
            self.control.begin(self._number, request.signature)
            self._calls.append(request)
            if len(self._calls) == 1:
                request.begin()
        return request

    def _planned(self, call):
        plan = self._plans.find(call.key) or self._plans.add(call.key, call.dtype)
        execution = plan.take(call.in_place)
        execution.bind(call.in_array, call.out_array)
        with self.failing:
            plan.agree()
        return CallRequest(self, plan, execution, call.in_place)

    def progress(self):
        """Advance the calls that were started, in order, as far as they go now; False if nothing has happened."""
        calls = self._calls
        if not calls:
            return False
        self._check_open()
        with self.failing:
            while calls[0].advance():
                del calls[0]
                if not calls:
                    return True
                calls[0].begin()
            return calls[0].moved

    def _drain(self):
        self._check_open()
        while self._calls:
            self._calls[-1].wait()

    # -- failure

    def fail(self, error):
        """End this communicator because of `error`: the others are told, every later call on it raises it."""
        if self._failure is None:
            self._failure = error
            self.control.tell_failure(error)

    def _check_open(self):
        if self._failure is not None:
            raise self._failure

    # -- messages

    def send(self, array, peer, stream=None, *, tag=0, timeout_s=None):
        """Send `array` to rank `peer`, which receives as many bytes with the same `tag` (0 to 31)."""
        self.start_send(array, peer, stream, tag=tag).wait(timeout_s)

    def start_send(self, array, peer, stream=None, *, tag=0):
        """As `send`, but returns a request. Messages with one peer and tag arrive in the order of their starts."""
        return self._message(Send, array, peer, tag, stream)

    def recv(self, out_array, peer, stream=None, *, tag=0, timeout_s=None):
        """Receive from rank `peer` into `out_array`."""
        self.start_recv(out_array, peer, stream, tag=tag).wait(timeout_s)

    def start_recv(self, out_array, peer, stream=None, *, tag=0):
        """As `recv`, but returns a request."""
        return self._message(Recv, out_array, peer, tag, stream)

    def send_recv(self, in_array, out_array, peer, stream=None, *, tag=0, timeout_s=None):
        """Send `in_array` to rank `peer` and receive `out_array` from it, at the same time."""
        received = self.start_recv(out_array, peer, stream, tag=tag)
        sent = self.start_send(in_array, peer, stream, tag=tag)
        received.wait(timeout_s)
        sent.wait(timeout_s)

    def _message(self, verb, array, peer, tag, stream):
        self._check_open()
        if stream is not None:
            raise InputError("stream: got one for a host array, expected None")
        if not 0 <= peer < self.world_size:
            raise InputError(f"peer: got {peer}, expected 0 to {self.world_size - 1}")
        if not 0 <= tag < len(USER_LANES):
            raise InputError(f"tag: got {tag}, expected 0 to {len(USER_LANES) - 1}")
        region = self.transport.register(array)
        op = verb(region, 0, region.nbytes, self.ranks[peer], make_tag(self.communicator_id, USER_LANES[tag]))
        if verb is Recv and region.buffer.readonly:
            raise InputError("recv: got a read-only array, expected a writable one")
        with self.failing:
            request = MessageRequest(self, self.transport.post((op,)))
            self._messages = [message for message in self._messages if not message.done and not message.poll()]
        self._messages.append(request)
        return request

    # -- groups

    def split(self, color, key=0, transport=None):
        """The Communicator of the ranks that call with the same `color`, by `key`, then rank. All ranks call it.

        Args:
            color: int; a negative one gets None.
            key: int.
            transport: over this one's, such as a ShapedTransport: what the new communicator's messages go over.

        Cost: two small collectives. The new communicator has tags of its own and shares the transport; close it or not.
        """
        mine = np.array([color, key], np.int64)
        everyone = np.empty((self.world_size, 2), np.int64)
        self.all_gather(mine, everyone)
        used = np.zeros(1 << COMMUNICATOR_BITS, np.uint8)
        used[list(self._used_ids)] = 1
        self.all_reduce(used, used, op="max")
        # The last id belongs to the transports.
        free = np.flatnonzero(used[:-1] == 0)
        if not len(free):
            raise InputError(
                f"split: got no free communicator id, expected fewer than {len(used) - 1} open communicators"
            )
        if color < 0:
            return None
        members = [rank for rank in range(self.world_size) if everyone[rank, 0] == color]
        members.sort(key=lambda rank: (everyone[rank, 1], rank))
        board_key = f"{self.late.key[-200:]}.{self._number}/{int(free[0])}:{members[0]}"
        ranks = [self.ranks[rank] for rank in members]
        child = Communicator(transport or self.transport, ranks, int(free[0]), self._used_ids, board_key=board_key)
        child.timeout_s, child.pauses, child.deterministic = self.timeout_s, self.pauses, self.deterministic
        tuning = self.tuning
        child.tuning.adopt(tuning.model, tuning.source, tuning.factors if len(ranks) == self.world_size else ())
        return child

    def close(self):
        """Release everything; a second call does nothing, any other method raises TransportError afterwards."""
        if self._failure is None:
            self._failure = TransportError(f"communicator {self.communicator_id} rank {self.rank}: closed")
        self._used_ids.discard(self.communicator_id)
        closes, self._closes = self._closes, ()
        for closing in closes:
            closing.close()

    def __enter__(self):
        return self

    def __exit__(self, _, error, __):
        # A program that ends with sys.exit(0) has not failed.
        if error is not None and getattr(error, "code", 1) not in (0, None):
            self.fail(PeerFailed(self.transport.rank, f"{type(error).__name__}: {error}"))
        self.close()


_EMPTY = np.empty(0, np.uint8)
