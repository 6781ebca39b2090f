"""Calls that were started: what `start_*` returns, and the one loop that every wait of a communicator runs.

Users have `test`, `wait` and `done`; names with an underscore are for lanterne's own modules.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING

from lanterne.collectives.execute.arguments import Form
from lanterne.collectives.execute.communicator_base import CommunicatorBase
from lanterne.collectives.execute.control import STALL_S
from lanterne.collectives.execute.plans import AnyExecution, AnyPlan
from lanterne.errors import InputError, LanterneError, TransportError
from lanterne.transport.base import Request, timeout_error
from lanterne.transport.timeouts import check_timeout_s
from lanterne.transport.waiting import MOVED, Moved, wait

if TYPE_CHECKING:
    from lanterne.collectives.execute.device import Entry
    from lanterne.collectives.execute.native import MpiCall

log: logging.Logger = logging.getLogger("lanterne.collectives")


# Of the time between two tests, at most so much counts as waiting: the rest is the user's own work.
TEST_GAP_S = 1.0
# How often a wait for a call looks at its peers: a system call and a look at each, which in waits of tenths of a
# second took a tenth of a rank's time when it was done each millisecond.
PEERS_S = 5e-3  # 8 hosts at 25 MB/s, 16 MiB: a look takes some 10 us with its call into the kernel


class CollectiveRequest:
    """Something that was started on a communicator: a collective call, or a message (MessageRequest).

    Attributes: `done`, whether it was seen to be complete on this rank; `test` looks anew.
    """

    __slots__ = ("_callback", "_communicator", "_end", "_patience", "done")
    # Of a collective call: what it is, equal on all ranks.
    _signature: str
    # Whether the last _advance() got anywhere.
    _moved: bool = False
    # Whether it may go ahead of calls before it.
    _goes_ahead: bool = False
    # On the machine's clock, when it will be done; inf where nobody knows.
    _due_s: float = inf
    # Of a call with device arrays, where it stands on the user's stream.
    _entry: "Entry | None" = None
    # Once a call is queued on streams, which is as far as the CPU has to wait, the transport's request of its end.
    _completion: Request | None = None

    def __init__(self, communicator: CommunicatorBase) -> None:
        self._communicator = communicator
        self._patience: _Patience | None = None
        self._callback: Callable[[], object] | None = None
        # Called once the call is complete, each time: it copies a result to where the user wants it.
        self._end: Callable[[], None] | None = None
        self.done: bool = False

    def test(self) -> bool:
        """Make progress; True once the call is complete on this rank.

        Raises:
            TransportTimeout: of the communicator's timeout; of the time between two tests, up to a second counts.
            InputError: another rank called something else.
            PeerFailed, TransportError: a rank failed; the communicator is closed.
        """
        if self.done:
            return True
        communicator = self._communicator
        try:
            with communicator.lock:
                communicator.progress()
                if self.done or self._poll():
                    return True
                if self._patience is None:
                    self._patience = _Patience(communicator.timeout_s, communicator.machine.now_s())
                self._patience.look(self, communicator.machine.now_s(), TEST_GAP_S)
            return False
        finally:
            communicator.engine.tell()

    def wait(self, timeout_s: float | None = None, *, queued: bool = False) -> None:
        """Return once the call is complete on this rank: outputs are whole, inputs may be changed.

        Args:
            timeout_s: seconds; None for the communicator's default.
            queued: or once it is queued on streams, which then order it.

        Raises:
            TransportTimeout: time ran out; names the ranks that never came. The communicator is closed.
            InputError, PeerFailed, TransportError: as `test`.
        """
        if not self.done and not (queued and self._completion is not None):
            _wait(self, timeout_s, queued)

    def _wait_as_call(self, what: str, timeout_s: float | None = None, *, queued: bool = False) -> None:
        """As `wait`, of a request that only the blocking verb `what` has.

        What the program raises here, as a signal handler does, ends the communicator: nobody can wait for this any
        more, and its message would match one of a later call.
        """
        try:
            self.wait(timeout_s, queued=queued)
        except LanterneError:
            raise
        except BaseException as error:
            if not self.done:
                _leave(self._communicator, what, error)
            raise

    def then(self, callback: Callable[[], object], timeout_s: float | None = None) -> None:
        """Have `callback()` called once this is over: `wait` then returns, or raises what has failed, at once.

        It is called in whichever thread sees the end: that of the engine, or one that waits or tests; in this one if it
        is over by now. No lock is held then: it may begin calls, and wait for them. Of host arrays only.

        Args:
            timeout_s: as if somebody waited from now on, for so long; None for the communicator's.

        Raises:
            InputError: of a call with device arrays, or a second time.
        """
        communicator = self._communicator
        with communicator.lock:
            if self._entry is not None or self._callback is not None:
                raise InputError(f"then: got {'device arrays' if self._entry else 'a second callback'}, expected none")
            if communicator.transport.background_s is None:
                # Nobody looks between two calls: what is over by now, as a call of one rank, is not to be waited for.
                with suppress(LanterneError):
                    communicator.progress()
            over = self.done or communicator.failure is not None
            if not over:
                limit_s = communicator.timeout_s if timeout_s is None else check_timeout_s(timeout_s)
                self._patience = _Patience(limit_s, communicator.machine.now_s())
                self._callback = callback
                communicator.watch(self)
        communicator.engine.tell()
        if over:
            callback()

    @property
    def _is_watched(self) -> bool:
        """Whether a callback waits for its end (`then`)."""
        return self._callback is not None

    def _look(self) -> None:
        """Look at deaths and limits as a wait would, if it is watched."""
        if self._callback is not None and self._patience is not None:
            self._patience.look(self, self._communicator.machine.now_s())

    def _tell(self) -> None:
        """Call the callback of `then` once."""
        callback, self._callback = self._callback, None
        if callback is not None:
            try:
                callback()
            except Exception:
                log.exception("what was to follow a call failed")

    def _begin(self) -> None:
        """Start moving data, if nothing is in the way; called once, when all earlier calls are complete, or queued."""
        raise NotImplementedError

    def _advance(self) -> bool:
        """Make progress; True once complete, or queued on streams."""
        raise NotImplementedError

    def _poll(self) -> bool:
        """As `test`, after the communicator has made progress."""
        return self.done

    def _poll_completion(self) -> bool:
        """As `_poll`, of a call that is queued on streams."""
        if not self.done and self._completion is not None:
            with self._communicator.failing:
                self.done = self._completion.test()
        return self.done

    def _finish(self) -> None:
        """Note that this is complete on this rank."""
        if self._end is not None:
            self._end()
        self.done = True

    @property
    def _progress(self) -> int:
        """How far it is for the calls behind it, where it goes ahead (late/turn.py)."""
        return 0

    def _go_ahead(self, before: int) -> int:
        """Make progress beside the calls before it, which all go ahead too; return how far all are then, it included.

        Args:
            before: how far all of them are.
        """
        return before

    def _pending_peers(self) -> Sequence[int]:
        """Transport ranks that this waits for now."""
        raise NotImplementedError

    def _awaited(self) -> "CollectiveRequest":
        """What this waits for: the first of the calls under way, as long as it is one of them."""
        first = None if self._completion is not None else self._communicator.first
        return first or self

    def _expire(self, limit_s: float) -> None:
        """A wait has lasted `limit_s`: raise TransportTimeout, or see to it that the call ends soon."""
        communicator = self._communicator
        if self._entry is not None:
            communicator.device_side().check_reached(self._entry, self._signature, limit_s)
        control, pending = communicator.control, self._pending_peers()
        left = communicator.transport.membership.left
        # One that has left in order, and of which nothing is expected, was through this call before it told of it.
        absent = [rank for rank in control.absent() if rank in pending or rank not in left]
        peers = absent or control.silent(pending, limit_s)
        raise timeout_error(communicator.transport, peers, limit_s)


def _leave(communicator: CommunicatorBase, what: str, error: BaseException) -> None:
    """End `communicator` since `error`, of the program's own, has left the call `what` before its end."""
    transport = communicator.transport
    reason = f"{what} was left by {type(error).__name__} before its end, so later calls would be matched with it"
    expected = "expected a request (start_*), which can be waited for again"
    with communicator.lock:
        communicator.fail(TransportError(f"{transport.name} rank {transport.rank}: {reason}; {expected}"))


class CallRequest(CollectiveRequest):
    """A collective call. Calls of one communicator run in the order in which they were started, one after the other.

    They advance whenever any request of the communicator is waited for or tested, between by the engine.
    """

    __slots__ = ("_completion", "_entry", "_execution", "_form", "_moved", "_plan", "_signature", "_started")

    def __init__(
        self,
        communicator: CommunicatorBase,
        plan: AnyPlan,
        execution: "AnyExecution | MpiCall",
        form: Form,
        entry: "Entry | None" = None,
    ) -> None:
        super().__init__(communicator)
        self._signature = plan.signature
        self._entry = entry
        self._completion = None
        self._started = False
        self._plan = plan
        self._execution = execution
        self._form = form

    def _begin(self) -> None:
        """See CollectiveRequest."""
        agreement = self._plan.agreement
        if agreement is not None:
            if not agreement.test():
                return
            self._plan.agreement = None
        if self._execution.is_ready():
            self._started = True
            self._execution.start()

    def _advance(self) -> bool:
        """See CollectiveRequest."""
        if not self._started:
            self._begin()
            self._moved = self._started
            if not self._started:
                return False
        execution = self._execution
        before = execution.remaining
        done = execution.advance()
        self._moved = execution.remaining != before
        if not done:
            return False
        self._completion = execution.completion
        if self._completion is None:
            self._finish()
        self._plan.give_back(self._execution, self._form)
        return True

    _poll = CollectiveRequest._poll_completion

    def _pending_peers(self) -> Sequence[int]:
        return (self._plan.agreement or self._completion or self._execution).pending_peers()


class MessageRequest(CollectiveRequest):
    """A send or receive of the user's. It waits for no call before it."""

    __slots__ = ("_looked_s", "_request")

    def __init__(self, communicator: CommunicatorBase, request: Request) -> None:
        super().__init__(communicator)
        self._request: Request | None = request
        # On the machine's clock, when it was last seen not to be done; -inf: never.
        self._looked_s = -inf

    @property
    def _due_s(self) -> float:  # type: ignore[override]  # read only
        return inf if self._request is None else self._request.due_s

    def _pending_peers(self) -> Sequence[int]:
        return [] if self._request is None else self._request.pending_peers()

    def _awaited(self) -> "MessageRequest":
        return self

    def _expire(self, limit_s: float) -> None:
        assert self._request is not None, "a wait ends once the message is done"
        peers = self._communicator.control.silent(self._request.awaited_peers(), limit_s)
        raise self._request.overdue(peers, limit_s)

    def _poll(self) -> bool:
        """As CollectiveRequest._poll; True once the data has left (send) or arrived (receive)."""
        request = self._request
        if request is None:
            return True
        now_s = self._communicator.machine.now_s()
        with self._communicator.lock, self._communicator.failing:
            self.done: bool = request.test()
        if self.done:
            self._request = None  # which holds the arrays
        else:
            self._looked_s = now_s
        return self.done


class _Patience:
    """What a wait looks at beside its request: deaths, what other ranks tell, its limit.

    Args:
        limit_s: of the wait, which begins at `now_s`.
    """

    __slots__ = ("_checked_s", "_limit_s", "_reported_s", "_stall_s", "_waited_s")

    def __init__(self, limit_s: float, now_s: float) -> None:
        self._limit_s = limit_s
        self._stall_s = min(STALL_S, limit_s / 4)
        self._waited_s = self._reported_s = 0.0
        self._checked_s = now_s

    def look(self, request: CollectiveRequest, now_s: float, gap_s: float = inf) -> None:
        """Look, if the last time was long ago; of the time since then at most `gap_s` counts."""
        since_s = now_s - self._checked_s
        if since_s < PEERS_S:
            return
        self._checked_s = now_s
        self._waited_s += min(since_s, gap_s)
        communicator = request._communicator
        # Messages wait for no call, so nothing else tells them that a call has ended all.
        communicator.check_open()
        first = request._awaited()
        with communicator.failing:
            communicator.transport.check_peers(first._pending_peers())
            if self._waited_s > self._reported_s + self._stall_s:
                communicator.control.report(first._pending_peers(), self._limit_s)
                self._reported_s = self._waited_s
            if self._waited_s > self._limit_s:
                first._expire(self._limit_s)


def _wait(request: CollectiveRequest, timeout_s: float | None, queued: bool) -> None:
    """Advance everything of the communicator until `request` is done; see CollectiveRequest.wait."""
    communicator = request._communicator
    lock, engine = communicator.lock, communicator.engine

    def look() -> bool | Moved:
        with lock:
            moved = communicator.progress()
            # What is queued is not asked for: the device's answer takes longer than the call.
            done = request.done or (queued and request._completion is not None) or request._poll()
            if not done and len(engine.busy) > 1 and engine.advance_others(communicator):
                moved = True
        if engine.over:
            engine.tell()
        return done or (MOVED if moved else False)

    engine.take_over()
    try:
        if look():
            return
        limit_s = communicator.timeout_s if timeout_s is None else check_timeout_s(timeout_s)
        patience = _Patience(limit_s, communicator.machine.now_s())

        def meanwhile(now_s: float) -> None:
            with lock:
                patience.look(request, now_s)

        # Of a collective call nobody knows when it will be done, and asking costs as much as a look.
        due_s = (lambda: request._due_s) if isinstance(request, MessageRequest) else None
        # The patience ends it, but for a call that goes on a little, for all ranks alike.
        wait(look, inf, engine.pauses(communicator.pauses), meanwhile, due_s)
    finally:
        engine.hand_back()
        engine.tell()
