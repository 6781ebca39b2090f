"""MSCCL XML read: the rounds of transfers that a program of thread blocks stands for.

The program is run once, symbolically, in an order that its thread blocks and dependencies allow. A place of a buffer
then holds either what our cell (rank, chunk) holds, or *guests*: values that were received beside it, to be added
later. What comes to a place whose chunk the rank needs no more is a COPY; what is added is a REDUCE. Programs that keep
two values of a chunk at a rank, and go on with both, are refused: no schedule of ours says that.

A transfer goes into the first round after the last write of what it sends, behind those before it of its thread blocks,
and not before what it overwrites was read: differences between rounds, solved by longest paths.
"""

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

from lanterne.collectives.schedule.chunk_layout import input_chunks, output_chunks
from lanterne.collectives.schedule.formats.msccl_xml import Block, MscclProgram, Step, StepKind, parse_msccl
from lanterne.collectives.schedule.ir import COPY, REDUCE, CollectiveSchedule, Ints, ScheduleBuilder
from lanterne.errors import ScheduleError

# Of sweeps over transfers in search of their rounds; more would take minutes.
MAX_SWEEPS = 1 << 13


class ChunkRef(NamedTuple):
    """A place: a chunk of a buffer of a rank, as MSCCLang's chunk references are."""

    rank: int
    buffer: str
    offset: int


# The block of a message, and its number among those that the block sends, or receives.
Turn: TypeAlias = tuple[int, int]


class Sent(NamedTuple):
    """What a rank sent: its cell of `chunk` as of `version`; when its blocks did so."""

    rank: int
    chunk: int
    version: int
    sent: Turn
    received: Turn


class Own(NamedTuple):
    """A place holds what the rank's cell of `chunk` held as of `version`."""

    chunk: int
    version: int


# What a place holds.
Guests: TypeAlias = tuple[Sent, ...]
Value: TypeAlias = Own | Guests
Cell: TypeAlias = tuple[int, int]
# (number of the block, number of its step), in the order in which they are run.
Order: TypeAlias = list[tuple[int, int]]


def from_msccl_xml(text: str) -> CollectiveSchedule:
    """The (unchecked) schedule of an MSCCL XML document, in one phase, with the ports that it needs to be named yet.

    Raises:
        ScheduleError: no such document, steps that wait for ever, or that a schedule cannot say; names the step.
    """
    program = parse_msccl(text)
    return _Program(program, _run_order(program.blocks)).schedule()


# -- order


def _run_order(blocks: list[Block]) -> Order:
    """An order in which all steps can be run, those of the blocks in turn.

    Raises:
        ScheduleError: some wait for ever.
    """
    order: Order = []
    next_step = [0] * len(blocks)
    queued: dict[tuple[int, int, int], int] = defaultdict(int)
    moved = True
    while moved:
        moved = False
        for number, block in enumerate(blocks):
            at = next_step[number]
            if at == len(block.steps):
                continue
            step = block.steps[at]
            if step.wait[0] >= 0 and next_step[step.wait[0]] <= step.wait[1]:
                continue
            if step.kind.receives:
                line = block.recv, block.rank, block.channel
                if queued[line] < max(1, step.chunks):
                    continue
                queued[line] -= step.chunks
            if step.kind.sends:
                queued[block.rank, block.send, block.channel] += step.chunks
            order.append((number, at))
            next_step[number] += 1
            moved = True
    for number, block in enumerate(blocks):
        if next_step[number] < len(block.steps):
            raise ScheduleError(f"msccl: {block.steps[next_step[number]].where}: waits for ever")
    return order


# -- meaning


class _Transfers:
    """The transfers that were found so far, and which of them wrote each version of a cell.

    Attributes: `found`: what is sent, to which rank, by which operation, and the version of its cell that this makes.
    """

    def __init__(self) -> None:
        self.found: list[tuple[Sent, int, int, int]] = []
        # -1 is what a rank starts with.
        self.writers: dict[Cell, list[int]] = {}

    def begin(self, cell: Cell) -> None:
        """Its rank starts with what `cell` holds."""
        self.writers[cell] = [-1]

    def version(self, cell: Cell) -> int:
        """The latest of `cell`; -1 while it holds nothing."""
        return len(self.writers.get(cell, ())) - 1

    def add(self, rank: int, sent: Sent, op: int) -> Own:
        """Add the transfer of what was `sent` to `rank`; what the cell of `rank` is then."""
        writers = self.writers.setdefault((rank, sent.chunk), [])
        writers.append(len(self.found))
        self.found.append((sent, rank, op, len(writers) - 1))
        return Own(sent.chunk, len(writers) - 1)

    def rounds(self) -> Ints:
        """The round of each transfer.

        Raises:
            ScheduleError: there are none: something is overwritten before it can be used.
        """
        after = [*self._after_data()]
        for before in ([*after, *self._after_turns()], after):
            first, second, least = np.array(before, np.int64).reshape(-1, 3).T
            rounds = np.zeros(len(self.found), np.int64)
            for _ in range(min(len(rounds), MAX_SWEEPS) + 1):
                late = rounds[second] < rounds[first] + least
                if not late.any():
                    return rounds
                np.maximum.at(rounds, second[late], (rounds[first] + least)[late])
        raise ScheduleError("msccl: ranks overwrite what they sent before others can use it: no schedule says that")

    def _after_data(self) -> Iterator[tuple[int, int, int]]:
        """(transfer, another, so many rounds later that is at least)."""
        for number, (sent, rank, op, version) in enumerate(self.found):
            read, written = self.writers[sent.rank, sent.chunk], self.writers[rank, sent.chunk]
            if read[sent.version] >= 0:
                yield read[sent.version], number, 1
            if sent.version + 1 < len(read):
                yield number, read[sent.version + 1], 0
            if version and written[version - 1] >= 0:
                yield written[version - 1], number, int(op == COPY or self.found[written[version - 1]][2] == COPY)

    def _after_turns(self) -> Iterator[tuple[int, int, int]]:
        """The same of the transfers of a block, whose messages are sent, and received, one after the other."""
        for turns in ([row[0].sent for row in self.found], [row[0].received for row in self.found]):
            order = sorted(range(len(turns)), key=turns.__getitem__)
            yield from ((one, other, 1) for one, other in pairwise(order) if turns[one][0] == turns[other][0])


class _Program:
    """Runs the steps on values, and collects the transfers."""

    def __init__(self, program: MscclProgram, order: Order) -> None:
        head, blocks = program.head, program.blocks
        self.head = head
        self.blocks = blocks
        self.order = order
        self.outputs: dict[ChunkRef, int] = {}
        # Where input and output are the same memory, the place of the output.
        self.same: dict[ChunkRef, ChunkRef] = {}
        self.held: dict[ChunkRef, Value] = {}
        self.transfers = _Transfers()
        # Where a cell's value lies.
        self.places: dict[Cell, set[ChunkRef]] = defaultdict(set)
        # Of a block, its sends and receives so far.
        self.sends, self.receives = [0] * len(blocks), [0] * len(blocks)
        self.lines: dict[tuple[int, int, int], deque[Sent]] = defaultdict(deque)
        for rank in range(head.world_size):
            outputs = output_chunks(head, rank).tolist()
            index_of = {chunk: index for index, chunk in enumerate(outputs)}
            self.outputs |= {ChunkRef(rank, "o", index): chunk for index, chunk in enumerate(outputs)}
            for index, chunk in enumerate(input_chunks(head, rank).tolist()):
                place = ChunkRef(rank, "i", index)
                if program.in_place and chunk in index_of:
                    self.same[place] = ChunkRef(rank, "o", index_of[chunk])
                self.transfers.begin((rank, chunk))
                self._put(self.same.get(place, place), Own(chunk, 0))
        # Of a place, the steps that use it, and whether each reads it before it writes.
        self.uses: dict[ChunkRef, list[int]] = defaultdict(list)
        self.reads: dict[ChunkRef, list[bool]] = defaultdict(list)
        for now, (number, at) in enumerate(order):
            block, step = blocks[number], blocks[number].steps[at]
            for index in range(step.chunks):
                for place, is_read in self._touched(block, step, index):
                    self.uses[place].append(now)
                    self.reads[place].append(is_read)

    def schedule(self) -> CollectiveSchedule:
        for now, (number, at) in enumerate(self.order):
            step = self.blocks[number].steps[at]
            for index in range(step.chunks):
                self._run(now, number, step, index)
        for place, chunk in self.outputs.items():
            value = self.held.get(place)
            if value is not None and not isinstance(value, Own):
                value = self._settle(len(self.order), place, value, "the end")
            if value is None or value.chunk != chunk or value.version != self.transfers.version((place.rank, chunk)):
                raise ScheduleError(f"msccl: at the end output {place.offset} of rank {place.rank} lacks its result")
        head = self.head
        build = ScheduleBuilder(
            head.collective, head.algorithm, head.world_size, head.num_chunks, root=head.root, note=head.note
        )
        if self.transfers.found:
            rows = [(sent.rank, rank, sent.chunk, op) for sent, rank, op, _ in self.transfers.found]
            _, turn = np.unique(self.transfers.rounds(), return_inverse=True)
            build.rounds(turn, *np.array(rows).T)
        return build.build()

    def _touched(self, block: Block, step: Step, index: int) -> Iterator[tuple[ChunkRef, bool]]:
        """The places that `step` uses for its chunk `index`, and whether it reads them first."""
        kind = step.kind
        if kind.adds or not kind.receives:
            yield self._at(block, step.src, index), True
        if kind.stores:
            yield self._at(block, step.dst, index), kind.adds and not kind.receives

    def _at(self, block: Block, where: tuple[str, int], index: int) -> ChunkRef:
        place = ChunkRef(block.rank, where[0], where[1] + index)
        return self.same.get(place, place)

    def _run(self, now: int, number: int, step: Step, index: int) -> None:
        block, kind = self.blocks[number], step.kind
        source, target = self._at(block, step.src, index), self._at(block, step.dst, index)
        if kind == StepKind():
            return
        if not kind.stores and kind.adds:
            # Added, sent, and not kept: what the source held is not the rank's cell any more.
            target = ChunkRef(block.rank, "", len(self.transfers.found))
        if kind.receives:
            line = self.lines[block.recv, block.rank, block.channel]
            message = line.popleft()._replace(received=(number, self.receives[number]))
            self.receives[number] += 1
            value: Value = (message,)
            if kind.adds:
                value = self._sum(block.rank, self._value(source, step.where), value, step.where)
            elif not self._needs(now, block.rank, message.chunk, target):
                value = self.transfers.add(block.rank, message, COPY)
            self._put(target, value)
        elif kind.adds:
            value = self._value(target, step.where)
            self._put(target, self._sum(block.rank, value, self._value(source, step.where), step.where))
        elif kind.stores:
            self._put(target, self._value(source, step.where))
        if kind.sends:
            place = target if kind.receives else source
            value = self._value(place, step.where)
            if not isinstance(value, Own):
                value = self._settle(now, place, value, step.where)
            turn = number, self.sends[number]
            self.sends[number] += 1
            sent = Sent(block.rank, value.chunk, value.version, turn, turn)
            self.lines[block.rank, block.send, block.channel].append(sent)

    def _put(self, place: ChunkRef, value: Value) -> None:
        before = self.held.get(place)
        if isinstance(before, Own):
            self.places[place.rank, before.chunk].discard(place)
        self.held[place] = value
        if isinstance(value, Own):
            self.places[place.rank, value.chunk].add(place)

    def _value(self, place: ChunkRef, where: str) -> Value:
        value = self.held.get(place)
        if value is None:
            raise ScheduleError(f"msccl: {where}: buffer {place.buffer} holds nothing at {place.offset}")
        if isinstance(value, Own) and value.version != self.transfers.version((place.rank, value.chunk)):
            raise ScheduleError(
                f"msccl: {where}: reads an old value of chunk {value.chunk}, of which rank {place.rank} has a newer "
                "one: no schedule says that"
            )
        return value

    def _needs(self, now: int, rank: int, chunk: int, but: ChunkRef) -> bool:
        """Whether `rank` needs what its cell of `chunk` holds after step `now`, in another place than `but`."""
        version = self.transfers.version((rank, chunk))
        return any(
            place != but and self.held[place] == Own(chunk, version) and self._is_read(place, now)
            for place in self.places[rank, chunk]
        )

    def _is_read(self, place: ChunkRef, now: int) -> bool:
        """Whether what `place` holds after step `now` is read, or a result."""
        at = bisect_right(self.uses[place], now)
        return self.reads[place][at] if at < len(self.uses[place]) else place in self.outputs

    def _sum(self, rank: int, held: Value, more: Value, where: str) -> Value:
        """held + more."""
        if isinstance(held, Own) and isinstance(more, Own):
            raise ScheduleError(f"msccl: {where}: adds what rank {rank} has to what it has: no schedule says that")
        if not isinstance(held, Own) and not isinstance(more, Own):
            return held + more
        own, guests = (held, more) if isinstance(held, Own) else (more, held)
        assert isinstance(own, Own) and not isinstance(guests, Own), "one of each"
        for message in guests:
            if message.chunk != own.chunk:
                raise ScheduleError(f"msccl: {where}: adds chunk {message.chunk} to chunk {own.chunk}")
            own = self.transfers.add(rank, message, REDUCE)
        return own

    def _settle(self, now: int, place: ChunkRef, guests: Guests, where: str) -> Own:
        """The guests of `place` put into the rank's cell, which it does not need."""
        rank, chunk = place.rank, guests[0].chunk
        if self._needs(now, rank, chunk, place):
            raise ScheduleError(f"msccl: {where}: rank {rank} keeps two values of chunk {chunk}: no schedule says that")
        own = self._sum(rank, self.transfers.add(rank, guests[0], COPY), guests[1:], where)
        assert isinstance(own, Own), "it was one"
        for other, value in list(self.held.items()):
            if other.rank == rank and value is guests:
                self._put(other, own)
        self._put(place, own)
        return own
