"""Calls that were started: what `start_*` returns, and the one loop that every wait of a communicator runs."""

import time
from math import inf

from lanterne.collectives.execute.control import STALL_S
from lanterne.errors import InputError, LanterneError, PeerFailed, TransportTimeout
from lanterne.transport.base import POLLS_PER_CHECK, check_timeout_s, timeout_error

# How often a wait that naps looks for deaths and at its limit, which costs as much as a poll.
CHECK_S = 1e-3
# How long a rank whose peer is gone listens for the reason, which may be another rank's failure.
REASON_S = 0.05
# And for how long one whose library tells of a failure but not whose: it hears of a death before the launcher does.
DEATH_S = 1.0


class CollectiveRequest:
    """What all requests of a communicator have in common: `test` and `wait`."""

    __slots__ = ("communicator", "done")
    # Whether the last advance() got anywhere.
    moved = False
    # Of a call with device arrays, where it stands on the user's stream (device.Entry).
    entry = None
    # Of time.monotonic(), when it will be done; inf where nobody knows.
    due_s = inf
    # Once a call is queued on streams, which is as far as the CPU has to wait, the transport's request of its end.
    completion = None

    def __init__(self, communicator):
        self.communicator = communicator
        self.done = False

    def test(self):
        """Make progress; True once the call is complete on this rank.

        Raises:
            InputError: another rank called something else.
            PeerFailed, TransportError: a rank failed; the communicator is closed.
        """
        if not self.done:
            self.communicator.progress()
        return self.done or self.poll()

    def poll(self):
        """As `test`, after the communicator has made progress."""
        return self.done

    def poll_completion(self):
        """As `poll`, of a call that is queued on streams."""
        if not self.done and self.completion is not None:
            with self.communicator.failing:
                self.done = self.completion.test()
        return self.done

    def wait(self, timeout_s=None, queued=False):
        """Return once the call is complete on this rank: outputs are whole, inputs may be changed.

        Args:
            timeout_s: seconds; None for the communicator's default.
            queued: or once it is queued on streams, which then order it.

        Raises:
            TransportTimeout: time ran out; names the ranks that never came. The communicator is closed.
            InputError, PeerFailed, TransportError: as `test`.
        """
        if not self.done:
            wait(self, timeout_s, queued)

    def expire(self, limit_s):
        """A wait has lasted `limit_s`: raise TransportTimeout, or see to it that the call ends soon."""
        communicator = self.communicator
        if self.entry is not None:
            communicator.device_side().check_reached(self.entry, self.signature, limit_s)
        peers = communicator.control.absent() or self.pending_peers()
        raise timeout_error(communicator.transport, peers, limit_s)


class CallRequest(CollectiveRequest):
    """A collective call. Calls of one communicator run in the order in which they were started, one after the other.

    They advance whenever any request of the communicator is waited for or tested, and not between.
    """

    __slots__ = ("_execution", "_in_place", "_plan", "_started", "completion", "entry", "moved")

    def __init__(self, communicator, plan, execution, in_place, entry=None):
        super().__init__(communicator)
        self.entry, self.completion, self._started = entry, None, False
        self._plan, self._execution, self._in_place = plan, execution, in_place

    @property
    def signature(self):
        """What the call is, equal on all ranks."""
        return self._plan.signature

    def begin(self):
        """Start moving data, if nothing is in the way; called once, when all earlier calls are complete, or queued."""
        agreement = self._plan.agreement
        if agreement is not None:
            if not agreement.test():
                return
            self._plan.agreement = None
        if self._execution.is_ready():
            self._started = True
            self._execution.start()

    def advance(self):
        """Make progress; True once complete, or queued on streams."""
        if not self._started:
            self.begin()
            self.moved = self._started
            if not self._started:
                return False
        execution = self._execution
        before = execution.remaining
        done = execution.advance()
        self.moved = execution.remaining != before
        if not done:
            return False
        self.completion = execution.completion
        self.done = self.completion is None
        self._plan.give_back(self._execution, self._in_place)
        return True

    poll = CollectiveRequest.poll_completion

    def pending_peers(self):
        """Transport ranks that this call waits for now."""
        return (self._plan.agreement or self.completion or self._execution).pending_peers()


class NativeRequest(CollectiveRequest):
    """A nonblocking collective of the transport's library.

    Args:
        signature: what the call is.
        start: starts it and returns an object with Test().
        end: called once it is complete.
    """

    __slots__ = ("_end", "_request", "_start", "signature")

    def __init__(self, communicator, signature, start, end):
        super().__init__(communicator)
        self.signature, self._start, self._end = signature, start, end

    def begin(self):
        """As CallRequest.begin."""
        self._request = self._start()

    def advance(self):
        """As CallRequest.advance."""
        if not self._request.Test():
            return False
        self.done = True
        self._end()
        return True

    def pending_peers(self):
        """As CallRequest.pending_peers; the library does not tell, so all."""
        communicator = self.communicator
        return [peer for peer in communicator.ranks if peer != communicator.transport.rank]


class MessageRequest(CollectiveRequest):
    """A send or receive of the user's. It waits for no call before it.

    Attributes: `looked_s`, of time.monotonic(), when it was last seen not to be done; -inf: never.
    """

    __slots__ = ("_request", "looked_s")

    def __init__(self, communicator, request):
        super().__init__(communicator)
        self._request, self.looked_s = request, -inf

    @property
    def due_s(self):
        """See CollectiveRequest."""
        return inf if self.done else self._request.due_s

    def pending_peers(self):
        """As CallRequest.pending_peers."""
        return [] if self.done else self._request.pending_peers()

    def expire(self, limit_s):
        raise timeout_error(self.communicator.transport, self._request.awaited_peers(), limit_s)

    def poll(self):
        """As CallRequest.poll; True once the data has left (send) or arrived (receive)."""
        now_s = time.monotonic()
        with self.communicator.failing:
            self.done = self._request.test()
        if self.done:
            self._request = None  # which holds the arrays
        else:
            self.looked_s = now_s
        return self.done


def wait(request, timeout_s, queued):
    """Advance everything of the communicator until `request` is done; see CollectiveRequest.wait."""
    communicator = request.communicator
    communicator.progress()
    # What is queued is not asked for: the device's answer takes longer than the call.
    if request.done or (queued and request.completion is not None) or request.poll():
        return
    limit_s = communicator.timeout_s if timeout_s is None else check_timeout_s(timeout_s)
    start_s = time.monotonic()
    stall_s = min(STALL_S, limit_s / 4)
    next_check_s, next_report_s = start_s + CHECK_S, start_s + stall_s
    pauses, polls, idle = communicator.pauses, 0, 0
    while True:
        moved = communicator.progress()
        if request.done or (queued and request.completion is not None) or request.poll():
            return
        polls += 1
        idle = 0 if moved else idle + 1
        napped = idle and pauses.pause(idle, request.due_s)
        if not napped and polls % POLLS_PER_CHECK:
            continue
        now_s = time.monotonic()
        if now_s < next_check_s:
            continue
        next_check_s = now_s + CHECK_S
        with communicator.failing:
            communicator.transport.check_peers(request.pending_peers())
            if now_s > next_report_s:
                communicator.control.report()
                next_report_s = now_s + stall_s
            if now_s > start_s + limit_s:
                request.expire(limit_s)


class Failing:
    """A block in which an error ends the communicator: the others are told, and every later call raises it."""

    __slots__ = ("_communicator",)

    def __init__(self, communicator):
        self._communicator = communicator

    def __enter__(self):
        return self

    def __exit__(self, _, error, __):
        if not isinstance(error, LanterneError):
            return
        looks = isinstance(error, PeerFailed) or getattr(error, "rank_unknown", False)
        cause = _cause(self._communicator, error) if looks else error
        self._communicator.fail(cause)
        if cause is not error:
            raise cause from error


def _cause(communicator, error):
    """What `error` came from: a failure that another rank has told, or, if `error` names no rank, a death; else it."""
    deadline = time.monotonic() + DEATH_S
    while True:
        try:
            communicator.control.listen(REASON_S)
            if not isinstance(error, PeerFailed):
                communicator.transport.check_peers(communicator.ranks)
        except (InputError, PeerFailed, TransportTimeout) as told:
            return told
        except LanterneError:
            pass  # Another one that does not know.
        if isinstance(error, PeerFailed) or time.monotonic() > deadline:
            return error
        time.sleep(1e-3)
