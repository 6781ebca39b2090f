"""The Communicator: collectives and messages between the ranks of a job, named and ordered as in cupyx.distributed.

    import lanterne
    comm = lanterne.init()
    comm.all_reduce(x, y)

One thread per communicator. All members make the same calls in the same order.
"""

import numpy as np

from lanterne.collectives.algorithms.registry import algorithms_for
from lanterne.collectives.auto.tuning import Tuning
from lanterne.collectives.execute import native
from lanterne.collectives.execute.arguments import check_options, resolve
from lanterne.collectives.execute.control import Control
from lanterne.collectives.execute.plans import CONTROL_LANE, Plans, offered_algorithms
from lanterne.collectives.execute.requests import CallRequest, Failing
from lanterne.collectives.execute.scratch import Scratch
from lanterne.collectives.late.calls import LateRanks, LateRequest
from lanterne.collectives.point_to_point import StartedMessages
from lanterne.collectives.split import CLOSED, OPEN, split
from lanterne.errors import PeerFailed, TransportError, TransportTimeout
from lanterne.kernels.arrays import is_device_array
from lanterne.transport.base import Recv, Send, make_tag
from lanterne.transport.pauses import Pauses
from lanterne.transport.timeouts import check_timeout_s


class Communicator:
    """A group of ranks that communicate.

    Args:
        transport: the Transport of this rank.
        ranks: transport ranks of the members, in rank order; None for all.
        communicator_id: 16 bits, equal on all members, unlike that of any other group with a member of this one.
        used_ids: id -> OPEN or CLOSED, of this transport's communicators, which share it.
        ranks_here: how many ranks of the job run on this host; None: as many as members.
        closes: objects to close with this communicator, in order.
        board_key: of its arrival board: equal on all members, unlike that of any other communicator of the job.

    Attributes: `rank`; `world_size`; `transport`; `timeout_s`, the default of waits; `tuning`, what "auto" goes by;
    `deterministic`, False: where it matters, an all_reduce by "auto" finds out who is late (late/calls.py), and so in which
    order to sum; set it alike on all ranks.

    Every collective has a blocking form and a started one (`start_all_reduce`, ...), which returns a request with
    `wait` and `test`. Calls run in the order in which they were started, one after the other, and advance only while
    one of them is waited for or tested. Arrays are C-contiguous NumPy arrays or other host buffers, or device arrays of
    any library (`__cuda_array_interface__`, DLPack), in the order of `stream` (None: the one that made the array, else
    the current one). Over nccl a call with device arrays returns once it is queued on streams, over other transports
    once it is complete. Ranks in errors are those of the transport.

    Options of every collective:
        algorithm: a name of `algorithms(collective)`, or "auto".
        timeout_s: seconds to wait at most; None for the communicator's. "native" only has one if it is given.
        dtype: "bfloat16" where the arrays are uint16.
        late_rank, num_chunks, joined: as in collectives/algorithms/registry.py.
        segment_nbytes: bytes of a message, at most; None for the executor's choice.
        credits: receives posted at once, at most; None: the executor's choice (execute/compile.py says where it helps).

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
        self.used_ids = {} if used_ids is None else used_ids
        self.used_ids[communicator_id] = OPEN
        self._closes = closes
        self.scratch = Scratch(transport)
        self._plans = Plans(self)
        self._messages = StartedMessages(self)
        self.tuning = Tuning(self)
        self.deterministic = False
        self.late = LateRanks(self, board_key)
        # Calls not yet complete, in order; after a failure they stay, since the transport may still use their buffers.
        self._calls = []
        self.number = 0
        self._failure = None
        # A context in which an error of lanterne ends this communicator.
        self.failing = Failing(self)
        self.pauses = Pauses(self.world_size if ranks_here is None else ranks_here)
        self.native = None
        self._device = None

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

    def capture(self, collective, in_array, out_array, **options):
        """A Captured call: device arrays and algorithm fixed, made a CUDA graph once, launched many times. Over nccl.

        All ranks capture, and launch, alike. Where `all_reduce` by "auto" finds out who is late, there is a graph for
        each late rank, and the record of the call picks one. Calls on a stream that the caller captures are refused:
        the caller's graph would have to go before NCCL's communicator does.

        Args:
            collective: a name, such as "all_reduce"; arrays and options as its method's.

        Raises:
            InputError: no such collective, host arrays, or a transport that is not ordered on streams.
            Unavailable: a rank has no room for it, or its CUDA refuses; then no rank has it, and all can go on.
        """
        from lanterne.collectives.captured import Captured

        self.check_open()
        algorithms_for(collective)
        return Captured(self, collective, in_array, out_array, options)

    def arrivals(self):
        """Who came last to the calls that found it out, how often, by how much: an Arrivals.

        Counted is all_reduce by auto on three ranks or more: of two, the other one can do nothing before the last.
        Any rank may call it. The same on all ranks, but for the latest calls that did not ask: a rank reports those
        some at a time, or here, and they count once every rank has. For all of them: `arrivals()`, `barrier()`, then
        `arrivals()` again.
        """
        return self.late.look()

    def _call(self, collective, in_array, out_array, *, algorithm="auto", timeout_s=None, **options):
        check_timeout_s(timeout_s)
        if algorithm == "native" and timeout_s is None and not is_device_array(in_array):
            check_options(collective, options)
            self._drain()
            native.call(self, resolve(self, collective, in_array, out_array, algorithm=algorithm, **options))
            return
        # What is queued on streams is ordered by them: the CPU does not wait for it.
        self._start(collective, in_array, out_array, algorithm=algorithm, **options).wait(timeout_s, queued=True)

    def _start(self, collective, in_array, out_array, **options):
        self.check_open()
        check_options(collective, options)
        try:
            call = resolve(self, collective, in_array, out_array, **options)
        except TransportError as error:
            # The device has failed: no later call can succeed.
            self.fail(error)
            raise
        policy, late = None, self.late
        if collective == "all_reduce" and options.get("algorithm", "auto") == "auto" and not options.get("num_chunks"):
            policy = late.policy(collective, call.in_array.nbytes)
            if policy is None and late.reports(collective):
                late.came()
        if policy is not None:
            request = LateRequest(self, call, policy)
        elif call.algorithm == "native" and not native.is_queued(self, call):
            request = native.start(self, call)
        else:
            request = self._planned(call)
        return self.begin(request)

    def begin(self, request):
        """Start `request` after the calls before it, and return it."""
        with self.failing:
            self.number += 1
            self.control.begin(self.number, request.signature)
            self._calls.append(request)
            if len(self._calls) == 1:
                request.begin()
        return request

    def plan(self, key, dtype):
        """The Plan of `key` (arguments.Key)."""
        return self._plans.find(key) or self._plans.add(key, dtype)

    def _planned(self, call):
        plan = self.plan(call.key, call.dtype)
        execution = plan.take(call.in_place)
        execution.bind(call.in_array, call.out_array, call.entry)
        with self.failing:
            plan.agree()
        return CallRequest(self, plan, execution, call.in_place, call.entry)

    def progress(self):
        """Advance the calls that were started, in order, as far as they go now; False if nothing has happened."""
        calls = self._calls
        if not calls:
            return False
        self.check_open()
        with self.failing:
            while calls[0].advance():
                del calls[0]
                if not calls:
                    return True
                calls[0].begin()
            return calls[0].moved

    @property
    def busy(self):
        """Whether a call that was started is not yet complete on this rank."""
        return bool(self._calls)

    def _drain(self):
        self.check_open()
        while self._calls:
            self._calls[-1].wait()

    # -- failure

    def fail(self, error):
        """End this communicator because of `error`: the others are told, every later call on it raises it."""
        if self._failure is None:
            self._failure = error
            if isinstance(error, TransportTimeout):
                self.transport.end_soon()
            # First, since the others' NCCL sees an abort at once, and knows no reason.
            self.control.tell_failure(error)
            if self._device is not None:
                self._device.fail(error)

    def check_open(self):
        """Raise what has ended this communicator, if anything has."""
        device = self._device
        if self._failure is None and device is not None and not device.is_open:
            with self.failing:
                device.check()
        if self._failure is not None:
            raise self._failure

    # -- device arrays

    def device_side(self, array=None):
        """The DeviceSide of this rank; made at the first call with device arrays, of which `array` is one.

        Raises:
            Unavailable: no GPU, driver or CuPy here.
        """
        if self._device is None:
            from lanterne.collectives.execute.device import DeviceSide

            self._device = DeviceSide(self, array)
        return self._device

    # -- messages

    def send(self, array, peer, stream=None, *, tag=0, timeout_s=None):
        """Send `array` to rank `peer`, which receives as many bytes with the same `tag` (0 to 31)."""
        self.start_send(array, peer, stream, tag=tag).wait(timeout_s)

    def start_send(self, array, peer, stream=None, *, tag=0):
        """As `send`, but returns a request. Messages with one peer and tag arrive in the order of their starts."""
        return self._messages.start(((Send, array),), peer, tag, stream)

    def prepare_send(self, array, peer, *, tag=0):
        """A function that starts to send `array`, of the host, each time it is called, and returns a request.

        As `start_send`, which takes twice as long (0.2 ms) where a program's own work has swept the caches: it looks at
        the array anew.
        """
        return self._messages.prepare(Send, array, peer, tag)

    def recv(self, out_array, peer, stream=None, *, tag=0, timeout_s=None):
        """Receive from rank `peer` into `out_array`."""
        self.start_recv(out_array, peer, stream, tag=tag).wait(timeout_s)

    def start_recv(self, out_array, peer, stream=None, *, tag=0):
        """As `recv`, but returns a request."""
        return self._messages.start(((Recv, out_array),), peer, tag, stream)

    def prepare_recv(self, out_array, peer, *, tag=0):
        """A function that starts to receive into `out_array`; otherwise as `prepare_send`."""
        return self._messages.prepare(Recv, out_array, peer, tag)

    def send_recv(self, in_array, out_array, peer, stream=None, *, tag=0, timeout_s=None):
        """Send `in_array` to rank `peer` and receive `out_array` from it, at the same time."""
        self._messages.start(((Recv, out_array), (Send, in_array)), peer, tag, stream).wait(timeout_s)

    # -- groups

    def split(self, color, key=0, transport=None):
        """The Communicator of the ranks that call with the same `color`, by `key`, then rank. All ranks call it.

        Args:
            color: int; a negative one gets None.
            key: int.
            transport: over this one's, such as a ShapedTransport: what the new communicator's messages go over.

        Cost: two small collectives. The new communicator has tags of its own and shares the transport; close it or not.
        """
        return split(self, color, key, transport)

    def close(self):
        """Release everything; a second call does nothing, any other method raises TransportError afterwards.

        The communicator of all ranks waits for calls that are queued on streams first, on its groups too.

        Raises:
            TransportTimeout, PeerFailed, TransportError: such a call failed, and nobody was told; all is released then.
        """
        try:
            if self._failure is None and self._closes:
                with self.failing:
                    self.transport.settle()
        finally:
            self._release()

    def _release(self):
        if self._failure is None:
            self._failure = TransportError(f"communicator {self.communicator_id} rank {self.rank}: closed")
        self.used_ids[self.communicator_id] = CLOSED
        self.transport.keep(self.control)  # Its receives stay posted.
        closes, self._closes = self._closes, ()
        for closing in closes:
            closing.close()

    def __repr__(self):
        return f"<Communicator: rank {self.rank} of {self.world_size} over {self.transport.name}>"

    def __enter__(self):
        return self

    def __exit__(self, _, error, __):
        # A program that ends with sys.exit(0) has not failed.
        if error is not None and getattr(error, "code", 1) not in (0, None):
            self.fail(PeerFailed(self.transport.rank, f"{type(error).__name__}: {error}"))
        self.close()


_EMPTY = np.empty(0, np.uint8)
