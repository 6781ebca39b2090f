"""The Communicator: collectives and messages between the ranks of a job, named and ordered as in cupyx.distributed.

    import lanterne
    comm = lanterne.init()
    comm.all_reduce(x, y)

Any thread may call, and wait: each call is begun whole. All members begin the same calls in the same order, so threads
that share a communicator agree on that order among themselves.
"""

# So that help() says `Array`, not all that it may be.
from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import numpy as np

from lanterne.collectives.algorithms.catalogue import algorithms_for
from lanterne.collectives.auto.tuning import Tuning
from lanterne.collectives.bound import Bound
from lanterne.collectives.captured import Captured
from lanterne.collectives.core import Closing, CommunicatorCore
from lanterne.collectives.execute.native import algorithm_names
from lanterne.collectives.execute.requests import MessageRequest
from lanterne.collectives.growth import KnownLinks, enter, node_names, open_after
from lanterne.collectives.late.arrivals import Arrivals
from lanterne.collectives.mailbox import Mailbox
from lanterne.collectives.verbs import LateOptions, Verbs, call_options
from lanterne.errors import InputError, LanterneError, PeerFailed, TransportError
from lanterne.kernels.arrays import Array, Stream
from lanterne.kernels.dtypes import Op
from lanterne.transport.base import Recv, Send, Transport
from lanterne.transport.rank_group import Group
from lanterne.transport.timeouts import check_timeout_s


class Communicator(Verbs):
    """A group of ranks that communicate; `lanterne.init` and `lanterne.spawn` make that of all ranks, `split` others.

    Args:
        transport: the Transport of this rank.
        ranks: transport ranks of the members, in rank order; None for all.
        communicator_id: 16 bits, equal on all members, unlike that of any other group with a member of this one.
        ranks_here: how many ranks of the job run on this host; None: as many as members.
        hosts: the host of each member, alike on all; None: one host.
        closes: objects to close with this communicator, in order.
        epoch: how often the job has grown.

    Attributes:
        rank, world_size: this rank's place among the members, and how many they are.
        ranks: transport ranks of the members; those in errors are these.
        transport, communicator_id, hosts: as above.
        epoch: 0, or how often the job has grown since its start.
        newcomers: ranks that `grow` took in when it made this communicator; they know nothing of what went before.
        timeout_s: the default of waits, seconds; may be set.
        tuning: what "auto" goes by.
        deterministic: False: where it matters, an all_reduce by "auto" finds out who is late (late/calls.py), and so in
            which order to sum. May be set, alike on all ranks.

    Every collective has a blocking form and a started one (`start_all_reduce`, ...), which returns a request with
    `wait` and `test`. Calls run in the order in which they were started, one after the other. Over ucx, mpi and tcp
    those of host arrays advance in the background (execute/background.py), others while one of them is waited for or
    tested; arrays are not to be changed before the end. They are NumPy arrays, other host buffers or tensors, or
    C-contiguous device arrays of any library (`__cuda_array_interface__`, DLPack), in the order of `stream` (None: the
    one that made the array, else the current one). Host arrays that are not C-contiguous are copied: an input when the
    call is started, so it must not be the output of one that was not waited for; an output in `wait` or `test`. Over
    nccl a call with device arrays returns once it is queued on streams, over other transports once it is complete.

    Options of collectives:
        algorithm: a name of `algorithms(collective)`, or "auto"; or one from outside: a CollectiveSchedule (checked or
            not), the file of one (JSON, MSCCL XML), "module:function" that makes one, or the name of an entry point
            (algorithms/outside.py). It is checked before anything is sent; ranks with different ones all raise.
        timeout_s: seconds to wait at most; None for the communicator's. "native" only has one if it is given.
        dtype: "bfloat16" where the arrays are uint16.
        num_chunks: how many chunks the algorithm cuts the data into; None for its own choice.
        segment_nbytes: bytes of a message, at most; None for the executor's choice.
        credits: receives posted at once, at most; None: the executor's choice (execute/compile.py says where it helps).
        late_rank: of algorithms that expect one: the rank that comes late, or for "late_group" a tuple; None: the last.
        joined: of "late_hybrid", with num_chunks: so many chunks the others sum before that; None for its own choice.

    Raises, in every call:
        InputError: arrays, op or algorithm that cannot be (nothing was sent then); another rank called with other
            ones (then the communicator is closed).
        TransportTimeout, PeerFailed: a rank did not come in time, or died; names it. The communicator is closed, unless
            the call was one that finds out who is late, and nobody had begun with the missing rank.
    """

    def __init__(
        self,
        transport: Transport,
        ranks: Sequence[int] | None = None,
        communicator_id: int = 0,
        *,
        ranks_here: int | None = None,
        hosts: Sequence[str] | None = None,
        closes: Sequence[Closing] = (),
        epoch: int = 0,
    ) -> None:
        pauses = None if ranks_here is None else transport.machine.pauses(ranks_here)
        core = CommunicatorCore(
            transport, ranks, communicator_id, pauses=pauses, closes=closes, board_key=str(epoch), epoch=epoch
        )
        if hosts is not None:
            core.hosts = tuple(hosts)
        self._show(core)

    def _show(self, core: CommunicatorCore) -> None:
        """Be the face of `core`."""
        self._core = core
        # Bound once, so that a call passes through no more functions than it needs.
        self._call = core.call
        self._start = core.start
        self.rank: int = core.rank
        self.world_size: int = core.world_size
        self.ranks: tuple[int, ...] = core.ranks
        self.transport: Transport = core.transport
        self.communicator_id: int = core.communicator_id
        self.hosts: tuple[str, ...] = core.hosts
        self.epoch: int = core.epoch
        self.newcomers: tuple[int, ...] = ()
        self.tuning: Tuning = Tuning(self)
        core.tuning = self.tuning
        # Of the job's links, if it is more than the tuning of these ranks.
        self._known: KnownLinks | None = None

    @property
    def timeout_s(self) -> float:
        """The default of waits, seconds; may be set."""
        return self._core.timeout_s

    @timeout_s.setter
    def timeout_s(self, timeout_s: float) -> None:
        self._core.timeout_s = timeout_s

    @property
    def deterministic(self) -> bool:
        """Whether nobody finds out who is late; may be set, alike on all ranks."""
        return self._core.deterministic

    @deterministic.setter
    def deterministic(self, deterministic: bool) -> None:
        self._core.deterministic = deterministic

    # -- collectives; most are those of Verbs

    def algorithms(self, collective: str) -> tuple[str, ...]:
        """Names of the algorithms that `collective` can use here; "native" last, where the transport has one."""
        return algorithm_names(self._core, collective)

    def bind(
        self,
        collective: str,
        in_array: Array | None,
        out_array: Array | None = None,
        *,
        op: Op | None = None,
        root: int | None = None,
        **options: Unpack[LateOptions],
    ) -> Bound:
        """A Bound call on these host arrays, checked and resolved once: `call()` runs it, `call.start()` starts it.

        It is the same call as the method's: ranks may bind it or not. The arrays are read and written at every call.

        Args:
            collective: a name, such as "all_reduce"; arrays and options as its method's. Op and root None: the method's
                default. Of broadcast in_array alone.

        Raises:
            InputError: no such collective, device arrays, or what its method refuses.
        """
        self._core.check_open()
        algorithms_for(collective)
        return Bound(self._core, collective, in_array, out_array, op, root, call_options("bind", options))

    def capture(
        self,
        collective: str,
        in_array: Array,
        out_array: Array | None,
        *,
        op: Op | None = None,
        root: int | None = None,
        stream: Stream = None,
        **options: Unpack[LateOptions],
    ) -> Captured:
        """A Captured call: device arrays and algorithm fixed, made a CUDA graph once, launched many times. Over nccl.

        All ranks capture, and launch, alike. Where `all_reduce` by "auto" finds out who is late, there is a graph for
        each late rank, and the record of the call picks one. Calls on a stream that the caller captures are refused:
        the caller's graph would have to go before NCCL's communicator does.

        Args:
            collective: a name, such as "all_reduce"; arrays and options as its method's. Op None: the method's default.

        Raises:
            InputError: no such collective, host arrays, or a transport that is not ordered on streams.
            Unavailable: a rank has no room for it, or its CUDA refuses; then no rank has it, and all can go on.
        """
        self._core.check_open()
        algorithms_for(collective)
        given = call_options("capture", options)
        return Captured(self._core, collective, in_array, out_array, op, root, stream, given)

    def arrivals(self, since: int = 0) -> Arrivals:
        """Who came last to the calls that found it out, how often, by how much.

        Counted is all_reduce by auto on three ranks or more: of two, the other one can do nothing before the last.
        Any rank may call it. The same on all ranks, but for the latest calls that did not ask: a rank reports those
        some at a time, or here, and they count once every rank has. For all of them: `arrivals()`, `barrier()`, then
        `arrivals()` again. Of calls through memory that the ranks share, after some hundred, one in 17 is counted.

        Args:
            since: of the calls after so many; only of those that are kept (Arrivals) it is known who came last.
        """
        return self._core.late.look(since)

    # -- messages

    def send(
        self, array: Array, peer: int, stream: Stream = None, *, tag: int = 0, timeout_s: float | None = None
    ) -> None:
        """Send `array` to rank `peer`, another one, which receives as many bytes with the same `tag`.

        Tags are 0 to 2**31 - 1; over mpi less, by its MPI_TAG_UB, of which errors tell. `mailbox` has any.
        """
        if peer == self.rank:
            raise InputError(
                f"send: got peer {peer}, this rank itself, expected another: it would wait for its own receive; "
                "send_recv does both"
            )
        self.start_send(array, peer, stream, tag=tag)._wait_as_call("send", timeout_s)

    def start_send(self, array: Array, peer: int, stream: Stream = None, *, tag: int = 0) -> MessageRequest:
        """As `send`, but returns a request. Messages with one peer and tag arrive in the order of their starts."""
        return self._core.messages.start(((Send, array),), peer, tag, stream)

    def recv(
        self, out_array: Array, peer: int, stream: Stream = None, *, tag: int = 0, timeout_s: float | None = None
    ) -> None:
        """Receive from rank `peer` into `out_array`."""
        self.start_recv(out_array, peer, stream, tag=tag)._wait_as_call("recv", timeout_s)

    def start_recv(self, out_array: Array, peer: int, stream: Stream = None, *, tag: int = 0) -> MessageRequest:
        """As `recv`, but returns a request."""
        return self._core.messages.start(((Recv, out_array),), peer, tag, stream)

    def send_recv(
        self,
        in_array: Array,
        out_array: Array,
        peer: int,
        stream: Stream = None,
        *,
        tag: int = 0,
        timeout_s: float | None = None,
    ) -> None:
        """Send `in_array` to rank `peer` and receive `out_array` from it, at the same time."""
        both = self._core.messages.start(((Recv, out_array), (Send, in_array)), peer, tag, stream)
        both._wait_as_call("send_recv", timeout_s)

    def mailbox(self) -> Mailbox:
        """The Mailbox of this communicator: messages from any rank, by any tag, into arrays that may be larger.

        A header goes before each: some 10 us more than `send`.
        """
        return self._core.mailbox()

    # -- groups

    def split(self, color: int, key: int = 0, transport: Transport | None = None) -> Self | Any:
        """The Communicator of the ranks that call with the same `color`, by `key`, then rank. All ranks call it.

        Args:
            color: a rank with a negative one gets None, and no other does: hence the Any, which need not be checked.
            transport: over this one's, such as a ShapedTransport: what the new communicator's messages go over.

        Cost: two small collectives. The new communicator has tags of its own and shares the transport; close it or not.
        """
        core = self._core.split(color, key, transport)
        return None if core is None else self._child(core)

    def group(self, ranks: Sequence[int], timeout_s: float | None = None) -> Self:
        """The Communicator of those `ranks` of this one, in that order; only they call it, each as often as the others.

        Args:
            timeout_s: seconds to wait for the first of them, which asks the job's store for an id.

        Raises:
            InputError: ranks that cannot be, or this one is not among them.
            Unavailable: the ranks are threads of one process; `split` can do it there.
            TransportTimeout: the first of the ranks did not come.

        Cost: two round trips to the store. The new communicator shares the transport; close it or not.
        """
        return self._child(self._core.group(ranks, timeout_s))

    def revoke(self, reason: str = "") -> None:
        """End this communicator on all its members: their calls, those under way too, raise Revoked with `reason`.

        One rank calls it, the others learn it within some 0.1 s of waiting, or at their next call. `shrink` goes on.
        """
        self._core.revoke(reason)

    def agree(self, flags: int, timeout_s: float | None = None) -> int:
        """The bitwise and of the `flags` of all members that live: the same number on each, whoever dies meanwhile.

        All of them call it, equally often, also where an error or `revoke` has ended this communicator, which stays so.
        Who dies meanwhile counts on all or on none; who died before does not. So whoever has got through the calls
        before, and whoever has not, know alike whether all have: where one gave 0, all `shrink`. It waits for no call
        that was started, and ends none. Over tcp, ucx, nccl and local.

        Args:
            flags: a whole number, or a bool, from -2**63 to 2**63 - 1: 0 and 1, or a bit for each of some questions.
            timeout_s: whoever has not come so long after the first is dead to the job from now on, and gets PeerFailed
                with its own rank; None for twice the communicator's: others may wait in a call in vain until then.

        Raises:
            Unavailable: the transport is mpi.
            Revoked: another one shrinks this communicator instead; so on all.
            PeerFailed: of this rank: the others have gone on without it.
            TransportError: the job's store is lost, which decides who lives.

        Cost: one exchange with the store. Source: MPI's ULFM (MPIX_Comm_agree), which also raises where a death is not
        acknowledged yet; here deaths raise in calls that wait for the dead alone.
        """
        return self._core.agree(flags, timeout_s)

    def shrink(self, timeout_s: float | None = None) -> Self:
        """The Communicator of the members that live, in the same order; after PeerFailed, TransportTimeout or Revoked.

        All of them call it: each has had such an error, or gets Revoked in what it waits for. This communicator is over
        then; the new one takes its transport over, and is closed with this one. The others of the job, and groups of
        split, stay as they are. Over tcp, ucx, nccl and local. What was under way is lost: outputs of calls that raised
        hold anything.

        Args:
            timeout_s: whoever has not come so long after the first is dead to the job from now on, and gets PeerFailed
                with its own rank; None for the communicator's.

        Raises:
            Unavailable: the transport is mpi.
            PeerFailed: of this rank: the others have gone on without it.
            TransportError: the job's store is lost, which decides who lives.

        Cost: one exchange with the store. Sources: MPI's ULFM (MPIX_Comm_revoke, MPIX_Comm_shrink); NCCL's
        ncclCommShrink.
        """
        core = self._core.shrink(timeout_s)
        for _ in range(self.world_size - 1):
            try:
                return self._survivors(core)
            except TransportError:
                # Another one has died since they met.
                core = core.shrink(timeout_s)
        return self._survivors(core)

    def grow(self, model: str = "", timeout_s: float | None = None) -> Self:
        """The Communicator of these ranks and those that wait to be taken in; this one if nobody does.

        All members call it, between two calls, and are all that live of the job. New are ranks that were started again,
        and any other process that called `init(join=...)`; `newcomers` of what is returned says which they are.
        All ranks are numbered anew, in their old order, a rank that came back in its old place. This communicator, and
        what was made of it, is over then. If a newcomer dies before all are ready, or is refused, this communicator is
        returned and goes on.

        Args:
            model: what the program says of itself, at most 200 characters; who gives another to `init` is refused.
            timeout_s: for each of some few steps; None for the communicator's. A member that does not come within it is
                dead to the job.

        Raises:
            Unavailable: the transport is none of tcp and ucx, nor nccl beside one of them.
            InputError: members give different `model`.
            PeerFailed, TransportTimeout: as in every call: a member died before it; `shrink`, then come again.

        Cost: an all_reduce of a byte where nobody waits; else a connection to each rank, some 0.1 s on one host.
        """
        limit_s = self.timeout_s if timeout_s is None else check_timeout_s(timeout_s)
        core = self._core
        group = core.next_group(model, limit_s) if core.somebody_waits() else None
        if group is None:
            return self
        known = self._links_of_job()
        told = known.told(known.place_of[self.ranks[self.rank]], deterministic=self.deterministic, whole=self.rank == 0)
        grown = enter(group, open_after(core.transport), self._of_epoch, limit_s, told)
        if grown is None:
            return self
        grown.timeout_s = self.timeout_s
        group.take_over(core.transport.membership)
        core.succeed(grown._core)
        return grown

    @classmethod
    def _of_epoch(cls, opened: Transport, group: Group, known: KnownLinks | None, deterministic: bool) -> Self:
        """That of all ranks of `group`, which have come to know each other by `grow`. A collective call."""
        links = None if known is None else known.placed(group.hosts)
        hosts = node_names(group.hosts, None if links is None else links.topology_here)
        made = cls(opened, ranks_here=group.ranks_here, hosts=hosts, closes=(opened, group), epoch=group.epoch)
        made.newcomers = group.newcomers
        made.deterministic = deterministic
        try:
            made._core.share_memory()
            if links is not None:
                links.teach(made.tuning)
            elif known is not None and known.also_of(group.hosts):
                made.tuning.adopt(known.model, "told")
            else:
                made.tuning.learn(shares_memory=made._core.shares_memory)
        except LanterneError:
            made.close()
            raise
        made._known = links or KnownLinks.of(made.tuning, group.hosts, made.ranks)
        return made

    def _links_of_job(self) -> KnownLinks:
        """What is known of the links of this job's ranks, the dead too, for those that are taken in."""
        return self._known or KnownLinks.of(self.tuning, self.hosts, self.ranks)

    def _survivors(self, core: CommunicatorCore) -> Self:
        """As `_child`, of those that live; they remember the links of the dead."""
        child = self._child(core)
        child._known = self._links_of_job()
        return child

    def _child(self, core: CommunicatorCore) -> Self:
        """The face of `core`, which came from this one."""
        child = type(self).__new__(type(self))
        child._show(core)
        tuning = self.tuning
        factors = tuning.factors if core.world_size == self.world_size else ()
        places = [self.ranks.index(rank) for rank in core.ranks]
        topology = None if tuning.topology is None else tuning.topology.of_ranks(places)
        model = tuning.model if topology is None else topology.slowest
        child.tuning.adopt(model, tuning.source, factors, topology)
        core.share_memory()
        return child

    # -- the end

    @property
    def failure(self) -> LanterneError | None:
        """What has ended this communicator, which every call raises; None: nothing that is known without asking."""
        return self._core.failure

    def abort(self, reason: str = "aborted") -> None:
        """End this communicator, in any thread: calls under way, and later ones, raise TransportError with `reason`.

        The other members are told, and raise PeerFailed. Groups of it, and what it is a group of, go on.
        """
        self._core.abort(reason)

    def close(self) -> None:
        """Release everything; a second call does nothing, any other method raises TransportError afterwards.

        The communicator of all ranks waits for calls that are queued on streams first, on its groups too.

        Raises:
            TransportTimeout, PeerFailed, TransportError: such a call failed, and nobody was told; all is released then.
        """
        self._core.close()

    def __repr__(self) -> str:
        return f"<Communicator: rank {self.rank} of {self.world_size} over {self.transport.name}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A program that ends with sys.exit(0) has not failed.
        if error is not None and getattr(error, "code", 1) not in (0, None):
            self._core.fail(PeerFailed(self.transport.rank, f"{type(error).__name__}: {error}"))
        self.close()


def core_of(communicator: Communicator) -> CommunicatorCore:
    """What lanterne's own modules use of `communicator` beside what users do."""
    return communicator._core


def gather_bytes(comm: Communicator, mine: bytes) -> list[bytes]:
    """Return the bytes of every rank; all call it."""
    nbytes = np.empty(comm.world_size, np.int64)
    comm.all_gather(np.array([len(mine)], np.int64), nbytes)
    padded = np.frombuffer(mine.ljust(int(nbytes.max())), np.uint8)
    every = np.empty((comm.world_size, len(padded)), np.uint8)
    comm.all_gather(padded, every.reshape(-1))
    return [row[:count].tobytes() for row, count in zip(every, nbytes.tolist(), strict=True)]
