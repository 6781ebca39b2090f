"""What the parts of a communicator share on a rank: the calls under way, and how all end together.

A communicator's plans, requests, messages and late ranks know it as a CommunicatorBase; collectives/core.py adds them.
"""

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from lanterne.collectives.auto.tuning import Tuning
from lanterne.collectives.execute.background import Engine
from lanterne.collectives.execute.control import Control
from lanterne.collectives.execute.place import CommunicatorPlace
from lanterne.collectives.execute.scratch import Scratch
from lanterne.collectives.message_lanes import CONTROL_LANE
from lanterne.errors import InputError, LanterneError, PeerFailed, TransportTimeout
from lanterne.transport.base import Transport, make_tag
from lanterne.transport.machine import Lock
from lanterne.transport.pauses import Pauses
from lanterne.transport.store.connection import StoreLost
from lanterne.transport.waiting import wait

if TYPE_CHECKING:
    from lanterne.collectives.execute.device import DeviceSide
    from lanterne.collectives.execute.requests import CollectiveRequest

Call = TypeVar("Call", bound="CollectiveRequest")


# Calls that are under way at once, at most: each has a lane (message_lanes.BOARD_LANES).
MAX_AHEAD = 64  # a lane each
# How long a rank whose peer is gone listens for the reason, which may be another rank's failure.
REASON_S = 0.05  # a notice on one network
# And for how long one whose library tells of a failure but not whose: it hears of a death before the launcher does.
DEATH_S = 1.0  # notices of deaths take some 0.3 s
# So often, while a rank waits for the first of a group, it looks whether that has died.
DEATHS_S = 0.2  # notices of deaths take some 0.3 s


class CommunicatorBase(CommunicatorPlace):
    """The calls under way on a communicator, one after the other, until something ends them all.

    Args:
        transport, ranks, communicator_id, pauses: as CommunicatorPlace has them.
        engine: that of `transport`, which its communicators share; None: a new one.

    Attributes:
        tuning: what "auto" goes by; the Communicator sets it, with whose collectives it measures.
        control: the Control lane.
        scratch: host memory that all programs share.
        engine: advances calls that nobody waits for.
        lock: the transport's: whoever touches that, or the calls, holds it.
        failing: a context in which an error of lanterne ends this communicator.
        failure: what has ended it; None: nothing has, as far as is known without asking.
        mpi_communicator: of exactly these ranks, for MPI's own collectives; made when first needed (native.py).
        number: calls that were begun; device: the DeviceSide, once there was a call with device arrays.
        mail: what lets receives of a mailbox (collectives/mailbox.py) go on beside, while there are any.
    """

    tuning: Tuning

    def __init__(
        self,
        transport: Transport,
        ranks: tuple[int, ...],
        communicator_id: int,
        pauses: Pauses,
        engine: Engine | None = None,
    ) -> None:
        super().__init__(transport, ranks, communicator_id, pauses)
        self.lock: Lock = transport.lock
        self.engine: Engine = Engine(transport) if engine is None else engine
        self.engine.join(self)
        self.control: Control = Control(transport, ranks, self.rank, make_tag(communicator_id, CONTROL_LANE))
        self.scratch: Scratch = Scratch(transport)
        self.failing: Failing = Failing(self)
        self.mpi_communicator: Any = None
        self.number: int = 0
        self.mail: Callable[[], None] | None = None
        # Calls not yet complete, in order; after a failure they stay, since the transport may still use their buffers.
        self._calls: list[CollectiveRequest] = []
        self._messages: list[CollectiveRequest] = []
        self.failure: LanterneError | None = None
        self.device: DeviceSide | None = None

    # -- calls, one after the other

    def begin(self, request: Call) -> Call:
        """Start `request` after the calls before it, and return it."""
        with self.lock:
            try:
                self.number = number = self.number + 1
                self.control.begin(number, request._signature)
                calls = self._calls
                calls.append(request)
                if len(calls) == 1:
                    self.control.number = number
                    request._begin()
                    # What is queued on streams is through as far as the CPU is concerned.
                    if request.done or (request._entry is not None and request._advance()):
                        calls.clear()
                    else:
                        self.engine.busy[self] = None
                else:
                    self._go_ahead()
            except LanterneError:
                with self.failing:
                    raise
        return request

    def progress(self) -> bool:
        """Advance the calls that were started, in order, as far as they go now; False if nothing has happened."""
        if self.mail is not None:
            with self.lock, self.failing:
                self.mail()
        calls = self._calls
        if not calls and not self._messages:
            return False
        with self.lock:
            self.check_open()
            with self.failing:
                self.transport.take_in()
                moved = bool(self._messages) and self._poll_messages()
                while calls and calls[0]._advance():
                    moved = True
                    call = calls.pop(0)
                    if call._is_watched:
                        self.engine.over.append(call)
                    if not calls:
                        break
                    self.control.number += 1
                    calls[0]._begin()
                if not calls:
                    if not self._messages:
                        self.engine.busy.pop(self, None)
                    return moved
                return (len(calls) > 1 and self._go_ahead()) or moved or calls[0]._moved

    def _go_ahead(self) -> bool:
        """Advance the calls behind the first as far as they go without it; True if something has moved."""
        first = self._calls[0]
        if not first._goes_ahead:
            return False
        moved, before = False, first._progress
        for call in self._calls[1:MAX_AHEAD]:
            if not call._goes_ahead:
                break
            before = call._go_ahead(before)
            moved = moved or call._moved
        return moved

    def watch(self, request: "CollectiveRequest") -> None:
        """Tell the user of `request` of its end; one that is no call that was begun is advanced like one."""
        if id(request) not in map(id, self._calls):
            self._messages.append(request)
            self.engine.busy[self] = None
            self.engine.serve()

    def _poll_messages(self) -> bool:
        """Look which messages are done whose users want to be told; True if one is."""
        done = [message for message in self._messages if message._poll()]
        self._messages = [message for message in self._messages if message not in done]
        self.engine.over.extend(done)
        return bool(done)

    @property
    def busy(self) -> bool:
        """Whether a call that was started is not yet complete on this rank."""
        return bool(self._calls)

    @property
    def in_background(self) -> bool:
        """Whether the engine may advance the calls: not those with device arrays, whose device is a thread's own."""
        return bool(self._calls or self._messages) and self.device is None and self.failure is None

    def look(self) -> None:
        """End this communicator if a rank it waits for is dead, a watched time is over, or others call otherwise."""
        if self.failure is None:
            with self.failing:
                if self._calls:
                    self.transport.check_peers(self._calls[0]._pending_peers())
                elif self.device is None:
                    self.control.read()
                waited: list[CollectiveRequest] = [*self._calls, *self._messages]
                for each in waited:
                    each._look()

    @property
    def first(self) -> "CollectiveRequest | None":
        """The first of the calls that are under way, which the others wait for."""
        return self._calls[0] if self._calls else None

    def describe(self) -> str:
        """The calls that are under way, in a few words."""
        return f"communicator {self.communicator_id}: {len(self._calls)} calls, the first {self._calls[0]._signature}"

    # -- failure

    def fail(self, error: LanterneError) -> None:
        """End this communicator because of `error`: the others are told, every later call on it raises it."""
        if self.failure is None:
            self.end(error)
            if isinstance(error, TransportTimeout):
                self.transport.membership.ends_soon = True
            # First, since the others' NCCL sees an abort at once, and knows no reason.
            self.control.tell_failure(error)
            if self.device is not None:
                self.device.fail(error)

    def end(self, error: LanterneError) -> None:
        """As `fail`, without a word to anybody."""
        if self.failure is None:
            self.failure = error
            self.engine.busy.pop(self, None)
            self.engine.over.extend([*(call for call in self._calls if call._is_watched), *self._messages])
            self._messages = []
            self.engine.wake()

    def check_open(self) -> None:
        """Raise what has ended this communicator, if anything has."""
        device = self.device
        if self.failure is None and device is not None and not device.is_open:
            with self.failing:
                device.check()
        if self.failure is not None:
            raise self.failure

    def device_side(self, array: Any = None) -> "DeviceSide":
        """The DeviceSide of this rank; made at the first call with device arrays, of which `array` is one.

        Raises:
            Unavailable: no GPU, driver or CuPy here.
        """
        if self.device is None:
            from lanterne.collectives.execute.device import DeviceSide

            self.device = DeviceSide(self.transport, self.ranks, self.communicator_id, array)
            self.device.hear_by(self.failing.hear)
        return self.device


class Failing:
    """A block in which an error ends the communicator: the others are told, and every later call raises it.

    Attributes: `heard`, what `hear` has raised, in another thread: it is told once, and this rank's own error may have
    come first.
    """

    __slots__ = ("__weakref__", "_communicator", "heard")

    def __init__(self, communicator: CommunicatorBase) -> None:
        self._communicator = communicator
        self.heard: LanterneError | None = None

    def hear(self) -> None:
        """Raise what another rank has told, or a death, unless a thread that is in a call hears of it there."""
        communicator = self._communicator
        if communicator.failure is None and communicator.lock.acquire(blocking=False):
            try:
                communicator.control.read()
                communicator.transport.check_peers(())
                if (death := communicator.transport.membership.first_death(communicator.ranks)) is not None:
                    raise death
            except LanterneError as error:
                self.heard = error
                raise
            finally:
                communicator.lock.release()

    def __enter__(self) -> "Failing":
        return self

    def __exit__(self, _: object, error: BaseException | None, __: TracebackType | None) -> None:
        if not isinstance(error, LanterneError):
            return
        looks = isinstance(error, PeerFailed) or getattr(error, "rank_unknown", False)
        cause = _cause(self._communicator, error) if looks else error
        self._communicator.fail(cause)
        if cause is not error:
            raise cause from error


def _cause(communicator: CommunicatorBase, error: LanterneError) -> LanterneError:
    """What `error` came from: a failure that another rank has told, or, if `error` names no rank, a death; else it."""
    reason = error

    def look() -> bool:
        nonlocal reason
        try:
            if communicator.failing.heard is not None:
                raise communicator.failing.heard
            communicator.control.listen(REASON_S)
            if not isinstance(error, PeerFailed):
                communicator.transport.check_peers(communicator.ranks)
        except (InputError, PeerFailed, TransportTimeout) as told:
            reason = told
            return True
        except StoreLost:
            return True  # Nobody will tell of a death any more.
        except LanterneError:
            pass  # Another one that does not know.
        return isinstance(error, PeerFailed)

    wait(look, DEATH_S, communicator.pauses)
    if isinstance(reason, PeerFailed) and not reason.told:
        # Who died first may be why others ended.
        first = communicator.transport.membership.first_death(communicator.ranks)
        return reason if first is None or first.rank == reason.rank else first
    return reason
