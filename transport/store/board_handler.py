"""The store's arrival board: a Sequencer per communicator, fed by the ranks' arrivals."""

from collections import OrderedDict

from lanterne.transport.board.late_policy import from_text
from lanterne.transport.board.seat import pack_record, unpack_arrivals, unpack_took
from lanterne.transport.board.sequencer import Sequencer, Told
from lanterne.transport.store.handler import MAX_WORLD_SIZE, Connection, Refusal, Service
from lanterne.transport.store.membership.epoch import VERDICT_S
from lanterne.transport.wire import MAX_KEY_NBYTES, Kind

# Boards beyond this begin again, the longest idle first.
MAX_COMMUNICATORS = 1024
# Sixteen options, some of which name the ranks that they are for.
MAX_POLICY_NBYTES = 4096


class Board:
    """Receive arrivals, and send records, as notices, to the ranks that have arrived."""

    def __init__(self, store: Service) -> None:
        self._store = store
        # By key; the connections by rank.
        self._boards: OrderedDict[bytes, tuple[Sequencer, dict[int, Connection]]] = OrderedDict()
        self._timed: set[tuple[bytes, float]] = set()  # (key, deadline) for which a timer runs
        store.route(Kind.ARRIVE, "biiibbiib", self._arrive)
        store.route(Kind.READY, "bii", self._be_ready)
        store.route(Kind.REPORT, "biiib", self._report)
        store.route(Kind.PROGRESS, "biii", self._progress)
        store.route(Kind.GIVE_UP, "bii", self._give_up)

    def _arrive(
        self,
        connection: Connection,
        _request_id: int,
        key: bytes,
        rank: int,
        world_size: int,
        number: int,
        signature: bytes,
        policy: bytes,
        ready: int,
        prepared: int,
        took: bytes,
    ) -> None:
        if len(signature) > MAX_KEY_NBYTES or max(len(policy), len(took)) > MAX_POLICY_NBYTES:
            raise Refusal("got an arrival with too long a text")
        sequencer = self._find(connection, key, rank, world_size)
        try:
            parsed, ended = from_text(policy.decode()), unpack_took(took)
            text, now_s = signature.decode(errors="replace"), self._store.machine.now_s()
            told = sequencer.arrive(rank, number, text, parsed, now_s, bool(ready), prepared=bool(prepared), took=ended)
        except ValueError as error:
            raise Refusal(str(error)) from None
        self._tell(key, told)
        self._wind(key, sequencer)

    def _be_ready(self, connection: Connection, _request_id: int, key: bytes, rank: int, number: int) -> None:
        sequencer = self._of(connection, key, rank)
        if sequencer is not None:
            self._tell(key, sequencer.be_ready(rank, number, self._store.machine.now_s()))
            self._wind(key, sequencer)

    def _report(
        self,
        connection: Connection,
        _request_id: int,
        key: bytes,
        rank: int,
        world_size: int,
        now_ns: int,
        arrivals: bytes,
    ) -> None:
        sequencer = self._find(connection, key, rank, world_size)
        try:
            parsed = unpack_arrivals(arrivals)
        except ValueError as error:
            raise Refusal(str(error)) from None
        self._tell(key, sequencer.report(rank, now_ns / 1e9, parsed, self._store.machine.now_s()))

    def _find(self, connection: Connection, key: bytes, rank: int, world_size: int) -> Sequencer:
        """The Sequencer of board `key`, for `rank`, which speaks on `connection`."""
        if len(key) > MAX_KEY_NBYTES:
            raise Refusal("got an arrival with too long a text")
        if not 1 <= world_size <= MAX_WORLD_SIZE or not 0 <= rank < world_size:
            raise Refusal(f"got the arrival of rank {rank} of {world_size}")
        if key not in self._boards:
            self._boards[key] = Sequencer(world_size), {}
            if len(self._boards) > MAX_COMMUNICATORS:
                self._boards.popitem(last=False)
        self._boards.move_to_end(key)
        sequencer, connections = self._boards[key]
        if sequencer.world_size != world_size or connections.setdefault(rank, connection) is not connection:
            raise Refusal(f"got the arrival of rank {rank} of {world_size}, which it is not")
        return sequencer

    def _progress(
        self, connection: Connection, _request_id: int, key: bytes, rank: int, number: int, done: int
    ) -> None:
        sequencer = self._of(connection, key, rank)
        if sequencer is not None:
            self._tell(key, sequencer.progress(rank, number, done))

    def _give_up(self, connection: Connection, _request_id: int, key: bytes, rank: int, number: int) -> None:
        sequencer = self._of(connection, key, rank)
        if sequencer is not None:
            self._tell(key, sequencer.give_up(rank, number))

    def _of(self, connection: Connection, key: bytes, rank: int) -> Sequencer | None:
        """The Sequencer of board `key`, at which `rank`, on `connection`, has been before; else None."""
        known = key in self._boards and self._boards[key][1].get(rank) is connection
        return self._boards[key][0] if known else None

    def _tell(self, key: bytes, told: Told) -> None:
        connections = self._boards[key][1]
        for rank, record in told:
            self._store.send(connections[rank], Kind.RECORD_NOTICE, 0, pack_record(key, record))

    def _wind(self, key: bytes, sequencer: Sequencer) -> None:
        """Have a timer run for the next window that ends."""
        deadline_s = sequencer.deadline_s()
        if deadline_s is not None and (key, deadline_s) not in self._timed:
            self._timed.add((key, deadline_s))
            self._store.after(max(0.0, deadline_s - self._store.machine.now_s()), lambda: self._ring(key, deadline_s))

    def _ring(self, key: bytes, deadline_s: float) -> None:
        self._timed.discard((key, deadline_s))
        if key in self._boards:
            sequencer = self._boards[key][0]
            self._tell(key, sequencer.expire(self._store.machine.now_s()))
            self._wind(key, sequencer)

    def connection_closed(self, connection: Connection) -> None:
        """Declare the client's ranks dead to their boards, once the job knows why.

        So ranks hear of the death from the job first. The job names the first rank to die, and what its guard has seen.
        """
        self._store.after(VERDICT_S, lambda: self._lose(connection))

    def _lose(self, connection: Connection) -> None:
        for key, (sequencer, connections) in self._boards.items():
            for rank, theirs in connections.items():
                if theirs is connection:
                    self._tell(key, sequencer.lose(rank, "it has died or left the job"))
