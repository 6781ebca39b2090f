"""What is behind a Communicator: its parts put together, and the way of a call through them."""

import itertools
import logging
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import reduce
from hashlib import sha256
from operator import and_
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from lanterne import __version__
from lanterne.collectives.algorithms.catalogue import NATIVE, SHARED
from lanterne.collectives.call.ids import CLOSED, OPEN, CommunicatorIds, first_free
from lanterne.collectives.execute import native
from lanterne.collectives.execute.arguments import CallOptions, CheckedCall, Key, check_whole, resolve
from lanterne.collectives.execute.background import Engine
from lanterne.collectives.execute.communicator_base import DEATHS_S, CommunicatorBase
from lanterne.collectives.execute.plans import CallPlan, Plans
from lanterne.collectives.execute.requests import CallRequest, CollectiveRequest, MessageRequest
from lanterne.collectives.late.calls import LateRanks, LateRequest
from lanterne.collectives.mailbox import Mailbox
from lanterne.collectives.point_to_point import StartedMessages
from lanterne.collectives.shared.pieces import WAYS
from lanterne.collectives.shared.shared_calls import SharedPlans, SharedRequest
from lanterne.collectives.shared.shared_memory import share_memory
from lanterne.errors import InputError, Revoked, TransportError, TransportTimeout, Unavailable
from lanterne.kernels.arrays import Array, Stream, is_device_array
from lanterne.kernels.dtypes import Dtype, Op
from lanterne.transport.base import COMMUNICATOR_BITS, Recv, Send, Transport
from lanterne.transport.membership import Membership
from lanterne.transport.pauses import Pauses
from lanterne.transport.store.meeting_names import to_agree, to_shrink
from lanterne.transport.store.terms import Terms
from lanterne.transport.timeouts import check_timeout_s

if TYPE_CHECKING:
    from lanterne.transport.rank_group import Group
    from lanterne.transport.store.client import StoreClient

log: logging.Logger = logging.getLogger("lanterne.collectives")

DEFAULTS = CallOptions()
# Of groups that only their members make: from the last one down, while `split` takes the first that is free. The last
# of all belongs to the transports.
LAST_GROUP_ID, GROUP_IDS = (1 << COMMUNICATOR_BITS) - 2, 1 << (COMMUNICATOR_BITS - 1)
# Of what a rank brings to an agreement; and how long, in timeouts, others are waited for there: whoever waits in a call
# in vain comes when the time of that is over.
FLAGS_NBYTES, AGREE_TIMEOUTS = 8, 2
# Numbers of groups where there is no store.
_lone = itertools.count()


def group_id(number: int) -> int:
    """The communicator id of the group that has this `number`."""
    return LAST_GROUP_ID - number % GROUP_IDS


class Closing(Protocol):
    """What can be closed."""

    def close(self) -> object: ...


class CommunicatorCore(CommunicatorBase):
    """A communicator without its face: what lanterne's own modules use of it beside what users do.

    Args:
        transport, ranks, communicator_id, closes: as Communicator has them.
        ids: of this transport's communicators, which share it.
        board_key: of its arrival board: equal on all members, unlike that of any other communicator of the job.
        epoch: of the job: how often it has grown.

    Attributes: `late`, a LateRanks; `messages`, StartedMessages; see CommunicatorBase, too.
    """

    def __init__(
        self,
        transport: Transport,
        ranks: Sequence[int] | None = None,
        communicator_id: int = 0,
        *,
        pauses: Pauses | None = None,
        closes: Sequence[Closing] = (),
        ids: CommunicatorIds | None = None,
        board_key: str = "0",
        epoch: int = 0,
        engine: Engine | None = None,
    ) -> None:
        members = tuple(range(transport.world_size) if ranks is None else ranks)
        super().__init__(transport, members, communicator_id, pauses or transport.machine.pauses(len(members)), engine)
        self.ids: CommunicatorIds = CommunicatorIds() if ids is None else ids
        self.ids.used[communicator_id] = OPEN
        self.epoch = epoch
        transport.closed_ids.discard(communicator_id)
        self._closes = tuple(closes)
        self._growths = 0  # so often it has asked for those that wait
        self._agreements = itertools.count(1)
        self._is_closed = False
        # By ranks, how many groups of them were made.
        self._grouped: Counter[tuple[int, ...]] = Counter()
        self._successor: CommunicatorCore | None = None  # what shrink has made of this one
        self._plans = Plans(self)
        self._shared: SharedPlans | None = None
        self.messages: StartedMessages = StartedMessages(self)
        self._mailbox: Mailbox | None = None
        self.late: LateRanks = LateRanks(self, board_key)

    # -- collective calls

    def call(
        self,
        collective: str,
        in_array: "Array | None",
        out_array: "Array | None",
        op: Op | None = None,
        root: int | None = None,
        stream: Stream = None,
        options: CallOptions = DEFAULTS,
        timeout_s: float | None = None,
    ) -> None:
        """Run the collective of this name; see Communicator."""
        if timeout_s is not None:
            check_timeout_s(timeout_s)
        given = out_array if in_array is None else in_array
        if options.algorithm == NATIVE and timeout_s is None and not is_device_array(given):
            self._drain()
            call = resolve(self, collective, in_array, out_array, op, root, stream, options)
            native.call(self, call)
            call.copy_back()
            return
        # What is queued on streams is ordered by them: the CPU does not wait for it.
        with self.lock:
            request = self._begin(collective, in_array, out_array, op, root, stream, options)
        if not request.done:
            request._wait_as_call(collective, timeout_s, queued=True)

    def start(
        self,
        collective: str,
        in_array: "Array | None",
        out_array: "Array | None",
        op: Op | None = None,
        root: int | None = None,
        stream: Stream = None,
        options: CallOptions = DEFAULTS,
    ) -> CollectiveRequest:
        """Start the collective of this name, and return its request: it advances in the background."""
        with self.lock:
            request = self._begin(collective, in_array, out_array, op, root, stream, options)
            self.engine.serve()
        return request

    def _begin(
        self,
        collective: str,
        in_array: "Array | None",
        out_array: "Array | None",
        op: Op | None,
        root: int | None,
        stream: Stream,
        options: CallOptions,
    ) -> CollectiveRequest:
        if self.failure is not None or self.device is not None:
            self.check_open()
        try:
            call = resolve(self, collective, in_array, out_array, op, root, stream, options)
        except TransportError as error:
            # The device has failed: no later call can succeed.
            self.fail(error)
            raise
        return self.begin_checked(call, options.algorithm == "auto" and self.asks(collective, options))

    @staticmethod
    def asks(collective: str, options: CallOptions) -> bool:
        """Whether calls like this find out who is late, where that is of use."""
        return collective == "all_reduce" and options.algorithm == "auto" and not options.num_chunks

    def begin_checked(self, call: CheckedCall, asks: bool) -> CollectiveRequest:
        """Begin `call`, under `lock`; `asks`: see there."""
        shares = call.key.algorithm == SHARED
        request = SharedRequest(self, self._shared_plans(call), call) if shares else self._request(call, asks)
        if call.back is not None:
            request._end = call.copy_back
        return self.begin_again(request, asks) if isinstance(request, SharedRequest) else self.begin(request)

    def _request(self, call: CheckedCall, asks: bool) -> CollectiveRequest:
        policy, late = None, self.late
        if asks:
            assert call.in_array is not None
            policy = late.policy(call.key.collective, call.in_array.nbytes, on_host=call.entry is None)
            if policy is None and late.reports(call.key.collective):
                late.came()
        if policy is not None:
            return LateRequest(self, late, call, policy)
        if call.key.algorithm == NATIVE and not native.is_queued(self, call):
            return native.start(self, call)
        return self._planned(call)

    def begin_again(self, request: SharedRequest, asks: bool) -> SharedRequest:
        """Begin `request`, under `lock`, if need be for another time; `asks`: see there."""
        request.done = False
        if asks and self.world_size > 2 and self.late.reports("all_reduce"):
            self.late.came_shortly()
        return self.begin(request)

    def plan(self, key: Key, dtype: Dtype) -> CallPlan:
        """The plan of calls of `key`."""
        return self._plans.find(key) or self._plans.add(key, dtype)

    def _planned(self, call: CheckedCall) -> CallRequest:
        plan = self._plans.find(call.key) or self._plans.add(call.key, call.dtype)
        form = call.in_place if call.counts is None else call.form
        execution = plan.take(form)
        execution.bind(call.in_array, call.out_array, call.entry)
        if not plan.agreed:
            with self.failing:
                plan.agree()
        return CallRequest(self, plan, execution, form, call.entry)

    def share_memory(self) -> None:
        """Let the ranks share memory, if they are processes of one host. A collective call."""
        memory = share_memory(self, self.call)
        if memory is not None:
            self._shared = SharedPlans(self, memory)
            self.shares_memory = True
            self.tuning.resolved.clear()

    def _shared_plans(self, call: CheckedCall) -> SharedPlans:
        if self._shared is None or call.entry is not None:
            what = "device arrays" if call.entry is not None else "ranks that share no memory"
            raise InputError(f"{SHARED} {call.key.collective}: got {what}, expected host arrays of ranks of one host")
        if call.key.collective not in WAYS or call.key.counts is not None:
            what = "counts" if call.key.collective in WAYS else call.key.collective
            raise InputError(f"{SHARED}: got {what}, expected even parts of {', '.join(WAYS)}")
        return self._shared

    def _drain(self) -> None:
        self.check_open()
        while calls := self._calls[-1:]:
            calls[0].wait()

    # -- messages

    def prepare_send(self, array: Array, peer: int, *, tag: int = 0) -> Callable[[], MessageRequest]:
        """A function that starts to send `array`, of the host, each time it is called; see StartedMessages.prepare."""
        return self.messages.prepare(Send, array, peer, tag)

    def prepare_recv(self, array: Array, peer: int, *, tag: int = 0) -> Callable[[], MessageRequest]:
        """A function that starts to receive into `array`; otherwise as `prepare_send`."""
        return self.messages.prepare(Recv, array, peer, tag)

    def mailbox(self) -> Mailbox:
        """The Mailbox of this communicator."""
        self.check_open()
        with self.lock:
            if self._mailbox is None:
                self._mailbox = Mailbox(self, self.messages)
            return self._mailbox

    def check_peers(self, request: CollectiveRequest) -> None:
        """Raise what ends this communicator if a rank that `request` waits for is known to be dead."""
        with self.failing:
            self.transport.check_peers(request._pending_peers())

    # -- groups

    def split(self, color: int, key: int, transport: Transport | None) -> "CommunicatorCore | None":
        """The core of what Communicator.split returns; its tuning is not set yet."""
        check_whole("split: got color", color, -(2**63), 2**63 - 1)
        check_whole("split: got key", key, -(2**63), 2**63 - 1)
        mine = np.array([color, key], np.int64)
        everyone = np.empty((self.world_size, 2), np.int64)
        self.call("all_gather", mine, everyone)
        free = self._free_id()
        if color < 0:
            self.ids.used[free] = CLOSED
            return None
        members = [rank for rank in range(self.world_size) if everyone[rank, 0] == color]
        members.sort(key=lambda rank: (int(everyone[rank, 1]), rank))
        return self._child(members, free, f"{self._key}.{self.number}/{free}:{members[0]}", transport=transport)

    def group(self, members: Sequence[int], timeout_s: float | None) -> "CommunicatorCore":
        """The core of what Communicator.group returns; its tuning is not set yet."""
        self.check_open()
        ranks = tuple(members)
        for rank in ranks:
            check_whole("group: got rank", rank, 0, self.world_size - 1)
        if self.rank not in ranks or len(set(ranks)) != len(ranks):
            raise InputError(f"group: got ranks {ranks} on rank {self.rank}, expected different ones, also this one")
        store = self.transport.membership.store
        if store is None and len(ranks) > 1:
            raise Unavailable("group: ranks of one process have no store to meet at; split has what group does")
        number = next(_lone) if store is None else self._agreed_number(store, ranks, timeout_s)
        free = group_id(number)
        if self.ids.used[free] == OPEN:
            raise InputError(f"group: got no free communicator id, expected fewer than {GROUP_IDS} open groups")
        return self._child(ranks, free, f"group {number}")

    def _child(
        self,
        members: Sequence[int],
        communicator_id: int,
        board_key: str,
        *,
        transport: Transport | None = None,
        closes: Sequence[Closing] = (),
    ) -> "CommunicatorCore":
        """The core of these ranks of this communicator, set as this one is; None: over its transport."""
        child = CommunicatorCore(
            transport or self.transport,
            [self.ranks[rank] for rank in members],
            communicator_id,
            pauses=self.pauses,
            closes=closes,
            ids=self.ids,
            board_key=board_key,
            epoch=self.epoch,
            engine=self.engine if transport in (None, self.transport) else None,
        )
        child.hosts = tuple(self.hosts[rank] for rank in members)
        child.timeout_s = self.timeout_s
        child.deterministic = self.deterministic
        return child

    @property
    def _key(self) -> str:
        """Of the board, as far as it goes into the key of a communicator that comes from this one."""
        return self.late.key[-200:]

    def revoke(self, reason: str) -> None:
        """See Communicator.revoke."""
        text = f"communicator {self.communicator_id}: rank {self.transport.rank} has ended it"
        self._end_for_all(Revoked(f"{text}: {reason}" if reason else text))

    def agree(self, flags: int, timeout_s: float | None) -> int:
        """See Communicator.agree."""
        check_whole("agree: got flags", flags, -(2**63), 2**63 - 1)
        self._check_not_over("agree")
        limit_s = AGREE_TIMEOUTS * self.timeout_s if timeout_s is None else check_timeout_s(timeout_s)
        mine = int(flags).to_bytes(FLAGS_NBYTES, "little", signed=True)
        # The store tells all of them the same: paths between ranks, and what has ended calls, do not matter here.
        name = to_agree(self._key, next(self._agreements))
        came = self._membership("shrink, agree").survivors(name, self.ranks, (), mine, limit_s)
        if not came:
            self._end_for_all(Revoked(f"communicator {self.communicator_id}: agree: another rank shrinks it"))
            self.check_open()
        return reduce(and_, (int.from_bytes(each, "little", signed=True) for each in came.values()))

    def shrink(self, timeout_s: float | None) -> "CommunicatorCore":
        """The core of what Communicator.shrink returns; its tuning is not set yet."""
        self._check_not_over("shrink")
        limit_s = self.timeout_s if timeout_s is None else check_timeout_s(timeout_s)
        # Whoever is still in a call waits for ranks that have left it.
        self.revoke("it shrinks")
        # Mostly zeros.
        ids = zlib.compress(bytes(self.ids.used), 1)
        for rank in self.ranks:
            with suppress(TransportError):
                self.transport.check_peers((rank,))
        cut = [rank for rank in self.ranks if rank in self.transport.unreachable]
        came = self._membership("shrink, agree").survivors(to_shrink(self._key), self.ranks, cut, ids, limit_s)
        used = np.maximum.reduce([np.frombuffer(zlib.decompress(each), np.uint8) for each in came.values()])
        free = first_free(used)
        if used[free] == CLOSED:
            # As in _free_id. Who dies meanwhile is found in the next call.
            self.transport.closed_ids.discard(free)
            self._membership("shrink, agree").survivors(f"{self._key}/reopened", tuple(came), (), b"", limit_s)
        members = [index for index, rank in enumerate(self.ranks) if rank in came]
        child = self._child(members, free, f"{self._key}.s/{free}:{self.ranks[members[0]]}", closes=self._closes)
        self._closes, self._successor = (), child
        self.transport.retire(self.communicator_id, orderly=False)
        return child

    def _membership(self, verb: str) -> Membership:
        """Return the transport's membership, for `verb`.

        Raises:
            Unavailable: over this transport `verb` is not possible.
        """
        transport, can = self.transport, self.transport.capabilities
        if not (can.grows if verb == "grow" else can.shrinks):
            why = "over which no rank is taken in" if verb == "grow" else "where no rank outlives another"
            raise Unavailable(f"{verb}: got transport {transport.name}, {why}; expected tcp or ucx")
        return transport.membership

    def _check_not_over(self, verb: str) -> None:
        """Raise if this communicator is closed, or another one is in its place; a failed one is not over yet."""
        if self._successor is not None:
            what = "got a communicator that was shrunk before, expected the one that shrink returned"
            raise InputError(f"{verb}: {what}")
        if self._is_closed:
            self.check_open()

    def somebody_waits(self) -> bool:
        """Whether a rank waits to be taken into the job, alike on all members. A collective call."""
        self.check_open()
        membership = self._membership("grow")
        with self.lock:
            membership.check_peers(())
            waits = membership.somebody_waits
        anybody = np.zeros(1, np.uint8)
        self.call("all_reduce", np.array([waits], np.uint8), anybody, "max")
        return bool(anybody[0])

    def next_group(self, model: str, limit_s: float) -> "Group | None":
        """Return this rank's Group in the job's next epoch; see Group.grow. All members that live call it."""
        self._growths += 1
        with self.failing:
            terms = Terms(__version__, self.transport.name, model)
            name = f"{self._key}/grow/{self._growths}"
            # No other membership grows.
            return cast("Group | None", self._membership("grow").grow(name, self.ranks, terms, limit_s))

    def succeed(self, successor: "CommunicatorCore") -> None:
        """This one is over, with its transport; `successor`, which has another, is closed with it."""
        self._release()
        self._successor = successor

    def _agreed_number(self, store: "StoreClient", ranks: tuple[int, ...], timeout_s: float | None) -> int:
        """A number that no other group of the job has: the first of `ranks` asks for it, and tells the others."""
        self._grouped[ranks] += 1
        name = f"{self.late.key} {ranks} {self._grouped[ranks]}"
        key = f"lanterne/group/{sha256(name.encode()).hexdigest()}"
        limit_s = self.timeout_s if timeout_s is None else check_timeout_s(timeout_s)
        if self.rank == ranks[0]:
            number = store.add("lanterne/groups", 1, limit_s)
            store.set(key, str(number).encode(), limit_s)
        else:
            number = int(self._told_by(ranks[0], store, key, limit_s))
        if number >= GROUP_IDS:
            # As in _free_id.
            self.transport.closed_ids.discard(group_id(number))
            store.set(f"{key}/{self.rank}", b"", limit_s)
            for rank in ranks:
                self._told_by(rank, store, f"{key}/{rank}", limit_s)
        return number

    def _told_by(self, rank: int, store: "StoreClient", key: str, limit_s: float) -> bytes:
        """What `rank` of this communicator, which makes a group, has in the store under `key`."""
        until_s = self.machine.now_s() + limit_s
        while True:
            try:
                return store.get(key, max(0.0, min(DEATHS_S, until_s - self.machine.now_s())))
            except TransportTimeout:
                first = self.ranks[rank]
                self.transport.check_peers((first,))
                if self.machine.now_s() > until_s:
                    text = f"{self.transport.name} rank {self.transport.rank}: rank {first} did not make the group"
                    raise TransportTimeout(f"{text} within {limit_s:g} s", (first,)) from None

    def abort(self, reason: str) -> None:
        """See Communicator.abort."""
        self._end_for_all(TransportError(f"{self.transport.name} rank {self.transport.rank}: {reason}"))

    def _end_for_all(self, error: TransportError) -> None:
        with self.lock:
            self.fail(error)
        self.engine.tell()

    def _free_id(self) -> int:
        """An id that no member uses, the same on all, and taken from now on."""
        try:
            while True:
                used = self.ids.offer(self.communicator_id)
                self.call("all_reduce", used, used, "max")
                free = self.ids.take(self.communicator_id, used)
                if free is not None:
                    break
        finally:
            self.ids.ask_no_more(self.communicator_id)
        if used[free] == CLOSED:
            # Where an id is over, what comes for it is dropped: none may send before all have it open again.
            self.transport.closed_ids.discard(free)
            self.call("all_reduce", np.zeros(1, np.uint8), np.zeros(1, np.uint8), "max")
        return free

    # -- the end

    def close(self) -> None:
        """See Communicator.close."""
        try:
            if self._successor is not None:
                self._successor.close()
            if self.failure is None and self._closes:
                with self.failing:
                    self.transport.settle()
        finally:
            self._release()

    def _release(self) -> None:
        with self.lock:
            self._is_closed = True
            # Of one that failed there may be messages under way: no other gets its id.
            self.ids.used[self.communicator_id] = CLOSED if self.failure is None else OPEN
            if self.failure is None and self.busy:
                log.warning("closed before the end of %s", self.describe())
                self.transport.membership.ends_soon = True
            is_idle = self.failure is None and not self.busy and not self._closes
            self.end(TransportError(f"communicator {self.communicator_id} rank {self.rank}: closed"))
            if not (is_idle and self.transport.retire(self.communicator_id, orderly=True)):
                self.transport.kept.append(self.control)  # Its receives stay posted.
        self.engine.tell()
        if self._closes:
            self.engine.stop()
        closes, self._closes = self._closes, ()
        for closing in closes:
            closing.close()
