"""From a checked schedule to one rank's RankProgram, for one size. Pure: no transport, no arrays.

- No barrier between rounds: the next round may start on the cells that have arrived.
- A received copy goes straight to its place in the output. A received contribution lands in scratch and is folded from
  there, the first time out of the input into the output, so that nothing is copied beforehand.
- A cell that this rank only passes on lives in scratch, from its arrival until it was sent.
- Messages wait only for earlier ones in the order (round, segment, listed). So the earliest unfinished message of the
  whole group can always proceed: no deadlock, even if every send waits for its receive.

Scratch: two segments per reducing transfer of the fullest round, plus the cells that are passed on.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from lanterne.collectives.algorithms.hierarchical.compose import Nodes
from lanterne.collectives.auto.pacing import NEIGHBOUR_CREDITS
from lanterne.collectives.execute.messages import Cell, MessageCutter, Part
from lanterne.collectives.execute.rank_program import (
    IN,
    OUT,
    SCRATCH,
    Action,
    BufferPlace,
    Fold,
    Message,
    Move,
    RankProgram,
)
from lanterne.collectives.execute.scratch import SlotKey, Slots
from lanterne.collectives.schedule.check_own import OwnSchedule
from lanterne.collectives.schedule.check_schedule import CheckedSchedule
from lanterne.collectives.schedule.chunk_layout import PartCount, input_chunks, output_chunks
from lanterne.collectives.schedule.ir import REDUCE, CollectiveSchedule

# More inputs than this are folded in several steps: the time to compile a kernel grows with their number.
MAX_FOLD_INPUTS = 16

# What two actions conflict on: a slot of scratch, or one cell of an array; by its buffer.
Storage: TypeAlias = tuple[int, int | Cell]
# A value to be added: where it lands, the action that receives it, whether it completes the sum.
Operand: TypeAlias = tuple[BufferPlace, int, bool]


def compile_program(
    checked: CheckedSchedule | OwnSchedule,
    rank: int,
    part_count: PartCount,
    itemsize: int,
    *,
    segment_nbytes: int,
    credits: int | None = None,
    in_place: bool = False,
    mean: bool = False,
    align: int = 1,
    nodes: Nodes = (),
    in_turn: bool = False,
) -> RankProgram:
    """The RankProgram of `rank` for parts (schedule/contracts.py) of `part_count` elements of `itemsize` bytes.

    Args:
        checked: of all ranks, or of `rank`.
        segment_nbytes: most bytes of a cell; the same on every rank.
        credits: receives that are posted at once, at most; None: any number. Where a message leaves only once its
            receive is posted (Capabilities.receiver_paced_nbytes), this keeps flows from meeting at one ingress.
        in_place: the chunks that both start and end at this rank have one place, in the output.
        mean: divide complete sums by world_size.
        nodes: the ranks of each, where there are several: from each peer of its own a rank posts NEIGHBOUR_CREDITS
            receives at once, and from others `credits`; those of smaller nodes than others so many from each node.
        in_turn: no more sends than `credits` are posted at once, in the order of the rounds: the port then serves its
            peers in the order in which they wait, not in that of their receives.
        align: chunks are of multiples of so many elements, but for the last of a part; the same on every rank.

    Cost: some 30 us per action.
    """
    schedule = checked.schedule
    cutter = MessageCutter(schedule, part_count, itemsize, segment_nbytes, align)
    rounds = list(cutter.rounds(rank))
    last_use = {
        cell.chunk: index
        for index, parts in rounds
        for part in parts
        if part.sends or part.reduces
        for cell in part.cells
    }
    segments = (list(group) for _, parts in rounds for _, group in groupby(parts, key=lambda part: part.segment))
    slots = Slots([p.num_elements * itemsize for p in parts if p.reduces and not p.sends] for parts in segments)
    compiler = RoundCompiler(cutter, rank, itemsize, in_place, last_use, slots)
    join_round = next((phase.start for phase in schedule.phases if phase.name == "join"), schedule.num_rounds)
    join_start = None
    complete = _complete_sums(schedule, rank) if mean else np.zeros(schedule.num_transfers, bool)
    for index, parts in rounds:
        if join_start is None and index >= join_round:
            join_start = len(compiler.log.actions)
        compiler.add_round(index, parts, complete)
    if join_start is None:
        join_start = len(compiler.log.actions)
    compiler.batches.append(len(compiler.log.actions))
    compiler.add_results()
    if credits is not None:
        compiler.log.limit_receives(credits, rank, nodes)
        if in_turn:
            compiler.log.limit_sends(credits)
    return compiler.finish(join_start)


def _complete_sums(schedule: CollectiveSchedule, rank: int) -> NDArray[np.bool_]:
    """Per transfer, whether it is a REDUCE that brings what `rank` lacked of a chunk of its result.

    Those are of the last round in which anything comes to the chunk there: a sum is complete at the end.
    """
    complete = np.zeros(schedule.num_transfers, bool)
    into = np.flatnonzero(schedule.dst == rank)
    chunk, round_of = schedule.chunk[into], np.searchsorted(schedule.offsets, into, side="right")
    last = np.zeros(schedule.num_chunks, np.int64)
    np.maximum.at(last, chunk, round_of)
    last[np.setdiff1d(np.arange(schedule.num_chunks), output_chunks(schedule, rank))] = -1
    complete[into] = (schedule.op[into] == REDUCE) & (round_of == last[chunk])
    return complete


class _Cells:
    """Where every cell that a rank touches is, and which action put it there."""

    def __init__(self, cutter: MessageCutter, rank: int, itemsize: int, in_place: bool) -> None:
        self.itemsize = itemsize
        # By array, IN or OUT: where its chunks begin, in elements, and how many elements it has.
        self.homes: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self.totals = [0, 0]
        for buffer, chunks in ((IN, input_chunks(cutter.schedule, rank)), (OUT, output_chunks(cutter.schedule, rank))):
            for chunk in chunks.tolist():
                self.homes[buffer][chunk] = self.totals[buffer]
                self.totals[buffer] += cutter.counts[chunk]
        self.in_place = in_place
        # Of a cell that is no longer where it started: its place, and the action that put it there.
        self.places: dict[Cell, BufferPlace] = {}
        self.producers: dict[Cell, int] = {}

    def home(self, cell: Cell, buffer: int) -> BufferPlace | None:
        """The BufferPlace of `cell` in the input or output array; None if it has none there."""
        base = self.homes[buffer].get(cell.chunk)
        return None if base is None else BufferPlace(buffer, (base + cell.start) * self.itemsize)

    def place(self, cell: Cell) -> BufferPlace:
        """Where `cell` is now."""
        if cell in self.places:
            return self.places[cell]
        place = self.home(cell, OUT if self.in_place and cell.chunk in self.homes[OUT] else IN)
        assert place is not None, "a rank holds what it has received, or what its input has"
        return place

    def passes_on(self, cell: Cell) -> bool:
        """True for a cell without a place in the output: what arrives of it stays in scratch until it is sent on."""
        return cell.chunk not in self.homes[OUT]

    def nbytes(self, cells: Iterable[Cell]) -> int:
        return sum(cell.stop - cell.start for cell in cells) * self.itemsize

    def runs(self, cells: Sequence[Cell], places: Sequence[tuple[BufferPlace, ...]]) -> list[list[int]]:
        """Maximal runs of `cells` whose tuples of `places` are all adjacent in memory: lists of indices."""
        runs: list[list[int]] = []
        for i, places_i in enumerate(places):
            if i:
                step = self.nbytes(cells[i - 1 : i])
                before = places[i - 1]
                if len(before) == len(places_i) and all(
                    (a.buffer, a.offset + step) == b for a, b in zip(before, places_i, strict=True)
                ):
                    runs[-1].append(i)
                    continue
            runs.append([i])
        return runs

    def settle(self, cell: Cell, place: BufferPlace, producer: int) -> None:
        self.places[cell] = place
        self.producers[cell] = producer


class _ActionLog:
    """The actions so far, and which of them each waits for: those named, and all that use what it writes."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self.events: list[set[int]] = []
        # Of a storage key: the last action to write it, and those that have read it since.
        self.writers: dict[Storage, int] = {}
        self.readers: dict[Storage, list[int]] = {}

    def add(
        self,
        action: Action,
        after: Iterable[int | None],
        reads: Iterable[Storage] = (),
        writes: Iterable[Storage] = (),
    ) -> int:
        """Append `action`: it starts after the actions `after` and after all that use the storage that it `writes`."""
        index = len(self.actions)
        events = {event for event in after if event is not None}
        for key in reads:
            self.readers.setdefault(key, []).append(index)
        for key in writes:
            events.update(self.users(key))
            self.writers[key] = index
        events.discard(index)
        self.actions.append(action)
        self.events.append(events)
        return index

    def users(self, key: Storage) -> list[int]:
        """The actions that use storage `key` up to now; forgets them, since the next writer waits for them all."""
        users = self.readers.pop(key, [])
        if key in self.writers:
            users.append(self.writers.pop(key))
        return users

    def limit_receives(self, credits: int, rank: int, nodes: Nodes) -> None:
        """Let every receive of `rank` wait for the completion of the one `credits` before it.

        Those from a peer of its node wait for NEIGHBOUR_CREDITS of that peer alone. In a node smaller than others a
        rank stands for several of theirs, whose messages of a round come in any order: each node's wait for its own, or
        a late one would hold up all behind it. In the largest they would be too many for its NIC.
        """
        node_of = {member: node for node, ranks in enumerate(nodes) for member in ranks}
        is_small = bool(nodes) and len(nodes[node_of[rank]]) < max(map(len, nodes))
        receives: dict[tuple[int, int], list[int]] = {}
        for index, action in enumerate(self.actions):
            if type(action) is Message and not action.sends:
                node = node_of.get(action.peer, 0)
                of_own = bool(nodes) and node == node_of[rank]
                flow = (NEIGHBOUR_CREDITS, action.peer) if of_own else (credits, -1 - node * is_small)
                receives.setdefault(flow, []).append(index)
        for (window, _), indices in receives.items():
            for before, receive in zip(indices, indices[window:], strict=False):
                self.events[receive].add(before)

    def limit_sends(self, window: int) -> None:
        """Let every send wait for the completion of the one `window` before it."""
        sends = [index for index, action in enumerate(self.actions) if type(action) is Message and action.sends]
        for before, send in zip(sends, sends[window:], strict=False):
            self.events[send].add(before)

    def linked(self) -> tuple[list[int], list[list[int]], list[int]]:
        """(waits, successors, next_post) of a RankProgram, of each action."""
        successors: list[list[int]] = [[] for _ in self.actions]
        waits = [len(events) for events in self.events]
        next_post = [-1] * len(self.actions)
        last: dict[tuple[bool, int], int] = {}
        for index, (action, events) in enumerate(zip(self.actions, self.events, strict=True)):
            for event in events:
                successors[event].append(index)
            if type(action) is Message:
                before = last.get((action.sends, action.peer))
                if before is not None:
                    next_post[before] = index
                    waits[index] += 1
                last[action.sends, action.peer] = index
        return waits, successors, next_post


class RoundCompiler:
    """Walks the rounds: what each asks of a rank, as actions on cells."""

    def __init__(
        self,
        cutter: MessageCutter,
        rank: int,
        itemsize: int,
        in_place: bool,
        last_use: Mapping[int, int],
        slots: Slots,
    ) -> None:
        self.cutter = cutter
        self.itemsize = itemsize
        self.cells = _Cells(cutter, rank, itemsize, in_place)
        self.log = _ActionLog()
        self.batches: list[int] = []
        # By chunk, the last round that sends or reduces it here.
        self.last_use = last_use
        self.slots = slots

    # -- storage

    def storage(self, cell: Cell, place: BufferPlace) -> Storage:
        """What two actions conflict on: a slot of scratch, or one cell of an array."""
        return (SCRATCH, self.slots.index(place)) if place.buffer == SCRATCH else (place.buffer, cell)

    def take_slot(self, part: Part, resident: Iterable[Cell] = ()) -> tuple[BufferPlace, list[int]]:
        """A free slot of scratch for `part`, and its former users; it holds `resident` cells until their last use."""
        last_key = max([self.key, *((self.last_use.get(cell.chunk, -1), cell.segment) for cell in resident)])
        place = self.slots.take(part.num_elements * self.itemsize, self.key, last_key)
        return place, self.log.users((SCRATCH, self.slots.index(place)))

    # -- one round, segment by segment; what is sent is read before anything is written

    def add_round(self, index: int, parts: Iterable[Part], complete: Sequence[bool] | NDArray[np.bool_]) -> None:
        """Add what happens in round `index`: its `parts`, as MessageCutter sorts them."""
        parts = list(parts)
        sent = {cell for part in parts if part.sends for cell in part.cells}
        for segment, group in groupby(parts, key=lambda part: part.segment):
            self.batches.append(len(self.log.actions))
            self.add_segment((index, segment), list(group), sent, complete)

    def add_segment(
        self,
        key: SlotKey,
        parts: Iterable[Part],
        sent: Collection[Cell],
        complete: Sequence[bool] | NDArray[np.bool_],
    ) -> None:
        """Add what happens at `key` = (round, segment). `sent`: all cells that this rank sends in the round."""
        self.key = key
        for part in parts:
            if part.sends:
                self.add_send(part)
        operands: dict[Cell, list[Operand]] = {}
        for part in parts:
            if part.sends:
                continue
            if part.reduces:
                self.add_contribution(part, operands, complete)
            else:
                self.add_copy(part, sent)
        self.add_folds(operands)

    def add_send(self, part: Part) -> None:
        places = [self.cells.place(cell) for cell in part.cells]
        keys = [self.storage(cell, place) for cell, place in zip(part.cells, places, strict=True)]
        producers = [self.cells.producers.get(cell) for cell in part.cells]
        nbytes = part.num_elements * self.itemsize
        runs = self.cells.runs(part.cells, [(place,) for place in places])
        if len(runs) == 1:
            self.log.add(Message(True, part.peer, places[0], nbytes), producers, reads=set(keys))
            return
        slot, former = self.take_slot(part)
        slot_key = (SCRATCH, self.slots.index(slot))
        packed: list[int] = []
        offset = slot.offset
        for run in runs:
            size = self.cells.nbytes([part.cells[i] for i in run])
            after = [*former, *(producers[i] for i in run)]
            reads = {keys[i] for i in run}
            packed.append(self.log.add(Move(BufferPlace(SCRATCH, offset), places[run[0]], size), after, reads=reads))
            offset += size
        self.log.add(Message(True, part.peer, slot, nbytes), packed, reads=[slot_key])

    def receive(self, part: Part, resident: Iterable[Cell]) -> tuple[int, list[BufferPlace]]:
        """Receive `part` into scratch. Returns the action and where each cell lands."""
        slot, former = self.take_slot(part, resident)
        key: Storage = (SCRATCH, self.slots.index(slot))
        message = Message(False, part.peer, slot, part.num_elements * self.itemsize)
        received = self.log.add(message, former, writes=[key])
        offsets = np.cumsum([0, *(self.cells.nbytes([cell]) for cell in part.cells[:-1])]).tolist()
        return received, [BufferPlace(SCRATCH, slot.offset + offset) for offset in offsets]

    def add_copy(self, part: Part, sent: Collection[Cell]) -> None:
        cells = self.cells
        found = [cells.home(cell, OUT) for cell in part.cells]
        homes = [home for home in found if home is not None]
        # A cell that is sent from its home in this very round is received elsewhere: were the receive to wait for the
        # send, two ranks that swap would wait for each other.
        swapped = any(cell in sent and cells.place(cell) == home for cell, home in zip(part.cells, found, strict=True))
        if not swapped and len(homes) == len(found) and len(cells.runs(part.cells, [(home,) for home in homes])) == 1:
            message = Message(False, part.peer, homes[0], part.num_elements * self.itemsize)
            received = self.log.add(message, (), writes=[(OUT, cell) for cell in part.cells])
            for cell, home in zip(part.cells, homes, strict=True):
                cells.settle(cell, home, received)
            return
        received, places = self.receive(part, [cell for cell in part.cells if cells.passes_on(cell)])
        for cell, place in zip(part.cells, places, strict=True):
            cells.settle(cell, place, received)
            if not cells.passes_on(cell):
                self.move_home(cell)

    def move_home(self, cell: Cell) -> None:
        source, home = self.cells.place(cell), self.cells.home(cell, OUT)
        assert home is not None, "it is of the output"
        reads = [self.storage(cell, source)]
        moved = self.log.add(
            Move(home, source, self.cells.nbytes([cell])), [self.cells.producers.get(cell)], reads, writes=[(OUT, cell)]
        )
        self.cells.settle(cell, home, moved)

    def add_contribution(
        self, part: Part, operands: dict[Cell, list[Operand]], complete: Sequence[bool] | NDArray[np.bool_]
    ) -> None:
        """Receive values to be added; `operands` collects (place, action, completes the sum) per cell, as listed."""
        resident = [
            cell
            for cell in part.cells
            if self.cells.passes_on(cell) and cell not in operands and self.cells.place(cell).buffer != SCRATCH
        ]
        received, places = self.receive(part, resident)
        for cell, place, transfer in zip(part.cells, places, part.transfers, strict=True):
            operands.setdefault(cell, []).append((place, received, bool(complete[transfer])))

    def add_folds(self, operands: dict[Cell, list[Operand]]) -> None:
        cells = list(operands)
        places: list[tuple[BufferPlace, ...]] = []
        for cell in cells:
            own = self.cells.place(cell)
            landed = [place for place, _, _ in operands[cell]]
            # A cell that is passed on has no home.
            target = self.cells.home(cell, OUT) or (own if own.buffer == SCRATCH else landed[0])
            places.append((target, own, *landed))
        for run in self.cells.runs(cells, places):
            by_end = groupby(run, key=lambda i: any(completes for _, _, completes in operands[cells[i]]))
            for divides, group in by_end:
                self.add_fold([(cells[i], places[i]) for i in group], operands, divides)

    def add_fold(
        self,
        run: Sequence[tuple[Cell, tuple[BufferPlace, ...]]],
        operands: dict[Cell, list[Operand]],
        divides: bool,
    ) -> None:
        """Fold adjacent cells in one action. `run`: (cell, (target, own value, contributions...)) each."""
        target, *inputs = run[0][1]
        count = sum(cell.stop - cell.start for cell, _ in run)
        after: set[int | None] = {received for cell, _ in run for _, received, _ in operands[cell]}
        after.update(self.cells.producers.get(cell) for cell, _ in run)
        written = {self.storage(cell, places[0]) for cell, places in run}
        read = {self.storage(cell, place) for cell, places in run for place in places[1:]} - written
        while True:
            head, inputs = inputs[:MAX_FOLD_INPUTS], inputs[MAX_FOLD_INPUTS:]
            fold = Fold(target, tuple(head), count, divides and not inputs)
            folded = self.log.add(fold, after, reads=read, writes=written)
            if not inputs:
                break
            after = {folded}
            inputs = [target, *inputs]
        for cell, places in run:
            self.cells.settle(cell, places[0], folded)

    # -- the end

    def add_results(self) -> None:
        """Bring home every cell of the output that is elsewhere: what no transfer wrote."""
        for chunk in self.cells.homes[OUT]:
            for cell in self.cutter.cells(chunk):
                if self.cells.place(cell).buffer != OUT:
                    self.move_home(cell)

    def finish(self, join_start: int) -> RankProgram:
        """The RankProgram of the actions so far, of which those from `join_start` on need the late rank."""
        waits, successors, next_post = self.log.linked()
        return RankProgram(
            actions=tuple(self.log.actions),
            waits=tuple(waits),
            successors=tuple(map(tuple, successors)),
            next_post=tuple(next_post),
            in_count=self.cells.totals[IN],
            out_count=self.cells.totals[OUT],
            scratch_nbytes=self.slots.nbytes,
            batches=tuple(self.batches),
            join_start=join_start,
        )
