"""MSCCL++ execution plan: a schedule for the executor of Microsoft's mscclpp, as JSON.

Every rank runs one program: in a round it puts its messages into scratch slots of their receivers, one slot for every
message of the whole plan, and signals; then it waits for its own and copies or adds them. So nothing is overwritten
while it is read. At the start each rank exchanges signals with its peers, as their last run may not be over.

Facts from mscclpp (src/core/executor, include/execution_common.hpp): keys and operation names; at most 64 operations in
a thread block, 8 channels in an operation, 16 channels and buffers in a thread block, 16 semaphores; "nop" is a barrier
of the block's threads. A program of more operations goes on in further thread blocks, each started by a semaphore. Its
own parser, at 1f5f065, takes the plans of 2 to 8 ranks as meant (tests/collectives/schedule/test_mscclpp_parser.py).
"""

from collections.abc import Iterable
from typing import Any, TypeAlias

from lanterne.collectives.schedule.check_schedule import CheckedSchedule
from lanterne.collectives.schedule.formats.export_lowering import RankChunks, lower
from lanterne.collectives.schedule.ir import REDUCE, CollectiveSchedule, Transfer
from lanterne.errors import InputError

_NAMES = {
    "all_reduce": "allreduce",
    "reduce_scatter": "reducescatter",
    "all_gather": "allgather",
    "all_to_all": "alltoall",
}
_MAX_OPERATIONS, _MAX_PER_OPERATION, _MAX_PEERS, _MAX_BLOCKS = 64, 8, 16, 17

Slotted: TypeAlias = list[tuple[Transfer, int]]


def to_mscclpp_plan(checked: CheckedSchedule) -> dict[str, Any]:
    """The execution plan of a CheckedSchedule: a document of dicts, lists, ints and strings.

    Raises:
        InputError: not checked, a collective that the executor lacks, or more peers or operations than it takes.
    """
    schedule, collective, placements = lower(checked, _NAMES, "MSCCL++")
    programs = [_Program(schedule, rank, placement) for rank, placement in enumerate(placements)]
    for index in range(schedule.num_rounds):
        slotted = [(transfer, programs[transfer.dst].take_slot()) for transfer in _by_message(schedule.round(index))]
        for rank, program in enumerate(programs):
            program.send([(transfer, slot) for transfer, slot in slotted if transfer.src == rank])
        order = {transfer: i for i, transfer in enumerate(schedule.round(index))}
        slotted.sort(key=lambda pair: order[pair[0]])
        for rank, program in enumerate(programs):
            program.receive([(transfer, slot) for transfer, slot in slotted if transfer.dst == rank])
    return {
        "name": schedule.name,
        "collective": collective,
        "protocol": "Simple",
        "inplace": False,
        "reuse_resources": False,
        "gpus": [program.document() for program in programs],
        "num_threads_per_block": 1024,
        "use_double_scratch_buffer": False,
        "buffer_alignment": 16,
        "min_message_size": 0,
        "max_message_size": 2**64 - 1,
    }


def _by_message(transfers: Iterable[Transfer]) -> list[Transfer]:
    """The transfers of a round, those of one message together, so that its slots are neighbours."""
    return sorted(transfers, key=lambda transfer: transfer[:2])


class _Program:
    """The operations of one rank."""

    def __init__(self, schedule: CollectiveSchedule, rank: int, placement: RankChunks):
        self.schedule = schedule
        self.rank = rank
        self.placement = placement
        self.scratch: int = placement.scratch
        self.destinations: list[int] = sorted(set(schedule.dst[schedule.src == rank].tolist()))
        self.peers: list[int] = sorted({*self.destinations, *schedule.src[schedule.dst == rank].tolist()})
        if len(self.peers) > _MAX_PEERS:
            raise InputError(
                f"{schedule.name}: rank {rank} has {len(self.peers)} peers, MSCCL++ takes at most {_MAX_PEERS}"
            )
        self.operations: list[dict[str, Any]] = [
            {"name": "copy", "src_buff": [_part("i", source, count)], "dst_buff": [_part(buffer, index, count)]}
            for source, buffer, index, count in placement.copies
        ]
        if self.peers:
            self._signal("signal", self.peers)
            self._signal("wait", self.peers)
            self._barrier()

    def take_slot(self) -> int:
        """The number of a scratch chunk that nothing else uses."""
        self.scratch += 1
        return self.scratch - 1

    def send(self, slotted: Slotted) -> None:
        """Put the (transfer, slot) pairs of a round into their receivers' scratch and signal."""
        if not slotted:
            return
        runs = _runs([(transfer.dst, *self.placement.home[transfer.chunk], slot) for transfer, slot in slotted])
        for peer, buffer, index, slot, count in runs:
            target = {"buffer_id": self.destinations.index(peer), "index": slot, "size": count}
            channel = {"channel_ids": [self.peers.index(peer)], "channel_type": "memory"}
            self.operations.append(
                {"name": "put", "src_buff": [_part(buffer, index, count)], "dst_buff": [target], **channel}
            )
        self._barrier()
        self._signal("signal", sorted({transfer.dst for transfer, _ in slotted}))

    def receive(self, slotted: Slotted) -> None:
        """Wait for the messages of a round, then copy or add them in listed order."""
        if not slotted:
            return
        self._signal("wait", sorted({transfer.src for transfer, _ in slotted}))
        self._barrier()
        copies = [
            (transfer.dst, *self.placement.home[transfer.chunk], slot)
            for transfer, slot in slotted
            if transfer.op != REDUCE
        ]
        for _, buffer, index, slot, count in _runs(copies):
            whole = {"src_buff": [_part("s", slot, count)], "dst_buff": [_part(buffer, index, count)]}
            self.operations.append({"name": "copy", **whole})
        added: dict[int, list[int]] = {}
        for transfer, slot in slotted:
            if transfer.op == REDUCE:
                added.setdefault(transfer.chunk, []).append(slot)
        single = [
            (self.rank, *self.placement.home[chunk], slots[0]) for chunk, slots in added.items() if len(slots) == 1
        ]
        for _, buffer, index, slot, count in _runs(single):
            self._add(buffer, index, [slot], count)
        for chunk, slots in added.items():
            for first in range(0, len(slots) if len(slots) > 1 else 0, _MAX_PER_OPERATION):
                self._add(*self.placement.home[chunk], slots[first : first + _MAX_PER_OPERATION], 1)
                self._barrier()
        self._barrier()

    def _add(self, buffer: str, index: int, slots: list[int], count: int) -> None:
        home = _part(buffer, index, count)
        sources = [home, *(_part("s", slot, count) for slot in slots)]
        self.operations.append({"name": "re", "src_buff": sources, "dst_buff": [home], "reduce_op": "sum"})

    def _signal(self, name: str, peers: list[int]) -> None:
        channels = [self.peers.index(peer) for peer in peers]
        for first in range(0, len(channels), _MAX_PER_OPERATION):
            some = channels[first : first + _MAX_PER_OPERATION]
            self.operations.append({"name": name, "channel_ids": some, "channel_type": "memory"})

    def _barrier(self) -> None:
        if self.operations and self.operations[-1]["name"] != "nop":
            self.operations.append({"name": "nop"})

    def document(self) -> dict[str, Any]:
        """The plan's entry for this rank."""
        # Four operations of each block are kept for the semaphores and their barriers.
        size = _MAX_OPERATIONS - 4
        pieces = [self.operations[first : first + size] for first in range(0, len(self.operations), size)]
        if len(pieces) > _MAX_BLOCKS:
            count = len(self.operations)
            raise InputError(
                f"{self.schedule.name}: rank {self.rank} needs {count} operations, "
                f"MSCCL++ takes at most {size * _MAX_BLOCKS}"
            )
        blocks = []
        for number, operations in enumerate(pieces):
            before = [{"name": "sem_acquire", "semaphore_ids": [number - 1]}, {"name": "nop"}] if number else []
            after = (
                [{"name": "nop"}, {"name": "sem_release", "semaphore_ids": [number]}]
                if number + 1 < len(pieces)
                else []
            )
            channels = [{"channel_type": "memory", "channel_ids": list(range(len(self.peers)))}]
            buffers = [{"access_channel_type": "memory", "remote_buffer_ids": list(range(len(self.destinations)))}]
            blocks.append(
                {
                    "id": number,
                    "ops": [*before, *operations, *after],
                    "channels": channels,
                    "remote_buffer_refs": buffers,
                }
            )
        return {
            "id": self.rank,
            "input_chunks": self.placement.inputs,
            "output_chunks": self.placement.outputs,
            "scratch_chunks": self.scratch,
            "threadblocks": blocks,
            "channels": [{"channel_type": "memory", "connected_to": self.peers}],
            "remote_buffers": [
                {"rank": peer, "type": "s", "access_channel_types": ["memory"]} for peer in self.destinations
            ],
            "semaphores": [{"init_value": 0} for _ in pieces[1:]],
        }


def _part(buffer: str, index: int, count: int) -> dict[str, Any]:
    return {"type": buffer, "index": index, "size": count}


def _runs(rows: Iterable[tuple[int, str, int, int]]) -> list[tuple[int, str, int, int, int]]:
    """(peer, buffer, index, slot) rows with neighbours joined: (peer, buffer, index, slot, count)."""
    joined: list[tuple[int, str, int, int, int]] = []
    for peer, buffer, index, slot in rows:
        if joined:
            last_peer, last_buffer, first, first_slot, count = joined[-1]
            if (peer, buffer, index, slot) == (last_peer, last_buffer, first + count, first_slot + count):
                joined[-1] = (peer, buffer, first, first_slot, count + 1)
                continue
        joined.append((peer, buffer, index, slot, 1))
    return joined
