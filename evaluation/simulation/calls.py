"""What simulated ranks call of their communicator, each with what must come of it."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evaluation.simulation.seats import Player, SeatLog, make_play
from lanterne.collectives.communicator import Communicator
from lanterne.collectives.mailbox import Mailbox
from lanterne.collectives.schedule.cost import CostModel

# So that calls of BOARD_COUNT elements ask the board who is late.
MODEL, BOARD_COUNT = CostModel(1e-4, 1 / 50e6), 1 << 15


@dataclass
class RankOutcome:
    """How a rank ended: its first `error`, calls that were `complete`, and what it was given by each, with a copy.

    After an error it goes on with whoever lives: `groups` it went on with, and what that failed with, `gave_up`.
    """

    error: BaseException | None = None
    error_s: float = 0.0
    groups: list[tuple[int, ...]] = field(default_factory=list)
    gave_up: BaseException | None = None
    complete: int = 0
    has_opened: bool = False
    has_ended: bool = False
    kept: list[tuple[Any, Any]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    # By how often it has gone on: of the communicator then.
    boxes: dict[int, Mailbox] = field(default_factory=dict)


@dataclass
class Call:
    """A call of a rank: what it gives and is to get."""

    communicator: Communicator
    number: int
    kind: str
    count: int
    outcome: RankOutcome
    seed: int = 0
    logs: dict[int, SeatLog] = field(default_factory=dict)
    attempt: int = 0  # how often ranks have gone on without others

    def give(self, rank: int | None = None, count: int | None = None) -> Any:
        """What a rank, this one if it is None, gives: int64 of `count` elements."""
        rank = self.communicator.rank if rank is None else rank
        return np.arange(count or self.count, dtype=np.int64) % 13 + 100 * rank + 10_000 * self.number

    def every(self, count: int | None = None) -> Any:
        """What all ranks give, one row each."""
        return np.stack([self.give(rank, count) for rank in range(self.communicator.world_size)])

    def keep(self, got: Any, expected: Any) -> None:
        """`got` is complete."""
        wrong = int((got != expected).sum())
        if wrong:
            self.outcome.wrong.append(f"call {self.number}, {self.kind} of {self.count}: {wrong} wrong elements")
        self.outcome.kept.append((got, got.copy()))


def _all_reduce(call: Call) -> None:
    out = np.full(call.count, -1, np.int64)
    call.communicator.all_reduce(call.give(), out, algorithm=call.kind.split()[1])
    call.keep(out, call.every().sum(0))


def _all_gather(call: Call) -> None:
    out = np.full((call.communicator.world_size, call.count), -1, np.int64)
    call.communicator.all_gather(call.give(), out)
    call.keep(out, call.every())


def _reduce_scatter(call: Call) -> None:
    size, rank = call.communicator.world_size, call.communicator.rank
    out = np.full(call.count, -1, np.int64)
    call.communicator.reduce_scatter(call.give(count=size * call.count), out)
    call.keep(out, call.every(size * call.count).sum(0)[rank * call.count : (rank + 1) * call.count])


def _broadcast(call: Call) -> None:
    root = call.number % call.communicator.world_size
    out = call.give()
    call.communicator.broadcast(out, root=root)
    call.keep(out, call.give(root))


def _barrier(call: Call) -> None:
    call.communicator.barrier()


def _started(call: Call) -> None:
    outs = [np.full(call.count, -1, np.int64) for _ in range(3)]
    requests = [call.communicator.start_all_reduce(call.give(), out, algorithm="ring") for out in outs]
    for request in reversed(requests):
        request.wait()
    for out in outs:
        call.keep(out, call.every().sum(0))


def _background(call: Call) -> None:
    """Calls that the engine's thread advances while this rank computes; what follows the last is told."""
    communicator, machine = call.communicator, call.communicator.transport.machine
    rng = random.Random(f"{call.seed} {call.number} {communicator.rank}")
    outs = [np.full(call.count, -1, np.int64) for _ in range(3)]
    requests, told = [], []
    for out in outs:
        requests.append(communicator.start_all_reduce(call.give(), out, algorithm="ring"))
        machine.sleep(rng.choice((0.0, 1e-3, 0.03)))
    requests[-1].then(lambda: told.append("told"))
    machine.sleep(rng.choice((0.0, 0.1, 0.3)))
    for request in requests if rng.random() < 0.5 else reversed(requests):
        request.wait()
    for out in outs:
        call.keep(out, call.every().sum(0))
    if told != ["told"]:
        call.outcome.wrong.append(f"call {call.number}: its end was told {len(told)} times")


def _neighbours(call: Call) -> None:
    communicator = call.communicator
    size, rank = communicator.world_size, communicator.rank
    out = np.full(call.count, -1, np.int64)
    sent = communicator.start_send(call.give(), (rank + 1) % size)
    communicator.recv(out, (rank - 1) % size)
    sent.wait()
    call.keep(out, call.give((rank - 1) % size))


def _mail(call: Call) -> None:
    """Each rank sends to the next, and takes what comes from any, with this call's tag."""
    communicator, boxes = call.communicator, call.outcome.boxes
    size, rank = communicator.world_size, communicator.rank
    if call.attempt not in boxes:
        boxes[call.attempt] = communicator.mailbox()
    out = np.full(call.count + 1, -1, np.int64)
    sent = boxes[call.attempt].start_send(call.give(), (rank + 1) % size, tag=call.number)
    got = boxes[call.attempt].recv(out, tag=call.number)
    sent.wait()
    call.keep(out, np.append(call.give((rank - 1) % size), -1))
    if got != ((rank - 1) % size, call.number, out.nbytes - out.itemsize):
        call.outcome.wrong.append(f"call {call.number}: got {got}")


def _board(call: Call) -> None:
    gives = [(np.arange(BOARD_COUNT) % 13 + rank).astype(np.float32) for rank in range(call.communicator.world_size)]
    out = np.full(BOARD_COUNT, -1, np.float32)
    call.communicator.all_reduce(gives[call.communicator.rank], out)
    call.keep(out, np.sum(gives, 0))


def _seats(call: Call) -> None:
    communicator, transport = call.communicator, call.communicator.transport
    rank, ranks = communicator.rank, communicator.world_size
    if ranks != transport.world_size:
        return  # It was played by more ranks.
    others = [other for other in range(ranks) if other != rank]
    log = call.logs[rank] = SeatLog()
    seat = transport.membership.open_board(f"seats/{call.number}/{call.attempt}", rank, ranks)
    assert seat is not None
    check = lambda: transport.check_peers(others)  # noqa: E731
    player = Player(seat, rank, transport.machine, transport.timeout_s, check, log)
    player.play(make_play(f"{call.seed} {call.number}", ranks, call.count))


CALLS: dict[str, Callable[[Call], None]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "broadcast": _broadcast,
    "barrier": _barrier,
    "started": _started,
    "background": _background,
    "neighbours": _neighbours,
    "mail": _mail,
    "board": _board,
    "seats": _seats,
}
