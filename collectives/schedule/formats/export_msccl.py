"""MSCCL XML: a schedule for NCCL with Microsoft's MSCCL executor (and RCCL, which contains it).

Every rank has a thread block for its local copies, one for each rank that it sends to and one for each that it receives
from; each works through its steps in order. What our rounds order otherwise, a step says by the steps it depends on: a
send reads after the last write of its chunk, a receive writes after the last write and after the sends that still read
the old value.

Facts from the loader of msccl-executor-nccl (src/misc/msccl): names of collectives and step types; at most 256 steps a
thread block (64 unless built with a larger MSCCL_MAX_NUM_STEPS), 32 peers a channel each way, counts below 72, 4096 XML
elements a rank; all but one of a step's dependencies go to "nop" steps before it.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias
from xml.sax.saxutils import quoteattr

from lanterne.collectives.schedule.check_schedule import CheckedSchedule
from lanterne.collectives.schedule.formats.export_lowering import Home, RankChunks, lower
from lanterne.collectives.schedule.ir import REDUCE, CollectiveSchedule, Transfer
from lanterne.errors import InputError

_NAMES = {
    "all_reduce": "allreduce",
    "reduce": "reduce",
    "reduce_scatter": "reducescatter",
    "broadcast": "broadcast",
    "all_gather": "allgather",
    "all_to_all": "alltoall",
}
_MAX_STEPS, _MAX_PEERS, _MAX_COUNT, _MAX_CHANNELS = 256, 32, 71, 32
# Thread blocks are named by 8-bit numbers in dependencies; the loader keeps so many elements of a rank's own part.
_MAX_BLOCKS, _MAX_ELEMENTS = 128, 4096

# (thread block, step); the copies of a rank, or what it does with a peer.
Step: TypeAlias = tuple[int, int]
Key: TypeAlias = tuple[str, int]


def to_msccl_xml(checked: CheckedSchedule, protocol: str = "Simple") -> str:
    """The MSCCL XML document of a CheckedSchedule, as text.

    Args:
        protocol: "Simple", "LL" or "LL128".

    Raises:
        InputError: not checked, a collective that MSCCL lacks, or more steps or peers than its executor takes.
    """
    schedule, collective, placements = lower(checked, _NAMES, "MSCCL")
    ranks = [_Rank(rank, placement, schedule) for rank, placement in enumerate(placements)]
    for index in range(schedule.num_rounds):
        transfers = schedule.round(index)
        for transfer in transfers:
            ranks[transfer.src].send(transfer, placements[transfer.dst])
        for transfer in transfers:
            ranks[transfer.dst].receive(transfer, placements[transfer.src])
    head: dict[str, Any] = {
        "name": schedule.name,
        "proto": protocol,
        "nchannels": 1 + max((block.channel for rank in ranks for block in rank.blocks), default=0),
        "nchunksperloop": max(max(p.inputs, p.outputs) for p in placements),
        "ngpus": schedule.world_size,
        "coll": collective,
        "inplace": int(schedule.collective != "all_to_all"),
        "outofplace": 1,
        "minBytes": 0,
        "maxBytes": 0,
    }
    if head["nchannels"] > _MAX_CHANNELS:
        raise InputError(
            f"{schedule.name}: MSCCL needs {head['nchannels']} channels for it, expected at most {_MAX_CHANNELS}"
        )
    for rank in ranks:
        elements = sum(1 + len(block.steps) for block in rank.blocks) + schedule.world_size + 1
        if len(rank.blocks) > _MAX_BLOCKS or elements > _MAX_ELEMENTS:
            raise InputError(
                f"{schedule.name}: rank {rank.rank} needs {len(rank.blocks)} thread blocks and {elements} XML "
                f"elements, MSCCL takes at most {_MAX_BLOCKS} and {_MAX_ELEMENTS}"
            )
    lines = [_tag("algo", head, ">")]
    for rank in ranks:
        lines += rank.lines()
    return "\n".join([*lines, "</algo>", ""])


def _tag(name: str, attributes: Mapping[str, object], end: str) -> str:
    return f"<{name} {' '.join(f'{key}={quoteattr(str(value))}' for key, value in attributes.items())}{end}"


class _Block:
    """A thread block: its peers, its channel, its steps, and how far it has waited for each other block."""

    def __init__(self, send: int, recv: int, channel: int):
        self.send = send
        self.recv = recv
        self.channel = channel
        self.steps: list[dict[str, Any]] = []
        self.waited: dict[int, int] = {}

    def append(self, kind: str, source: Home, target: Home, count: int, wait: Step) -> None:
        """Append a step that moves `count` chunks from `source` to `target`, (buffer, index), once `wait` is over."""
        (srcbuf, srcoff), (dstbuf, dstoff), (depid, deps) = source, target, wait
        step = {
            "s": len(self.steps),
            "type": kind,
            "srcbuf": srcbuf,
            "srcoff": srcoff,
            "dstbuf": dstbuf,
            "dstoff": dstoff,
        }
        self.steps.append({**step, "cnt": count, "depid": depid, "deps": deps, "hasdep": 0})


class _Rank:
    """The thread blocks of one rank, and who last wrote and who still reads each of its chunks."""

    def __init__(self, rank: int, placement: RankChunks, schedule: CollectiveSchedule):
        self.rank = rank
        self.placement = placement
        self.schedule = schedule
        self.blocks: list[_Block] = []
        self._block_of: dict[Key, int] = {}
        self._writer: dict[int, Step] = {}
        self._readers: dict[int, list[Step]] = {}
        chunk_at = {place: chunk for chunk, place in placement.home.items()}
        for source, buffer, index, count in placement.copies:
            for first in range(0, count, _MAX_COUNT):
                some = min(_MAX_COUNT, count - first)
                step = self._add(("copy", -1), "cpy", ("i", source + first), (buffer, index + first), some, [])
                for i in range(first, first + some):
                    self._writer[chunk_at[buffer, index + i]] = step

    def send(self, transfer: Transfer, remote: RankChunks) -> None:
        """Append the send of `transfer`."""
        chunk = transfer.chunk
        place = self.placement.home[chunk]
        after = [self._writer[chunk]] if chunk in self._writer else []
        step = self._add(("send", transfer.dst), "s", place, remote.home[chunk], 1, after)
        self._readers.setdefault(chunk, []).append(step)

    def receive(self, transfer: Transfer, remote: RankChunks) -> None:
        """Append the receive of `transfer`; a reduce adds to what is there."""
        chunk = transfer.chunk
        place = self.placement.home[chunk]
        after = self._readers.pop(chunk, []) + ([self._writer[chunk]] if chunk in self._writer else [])
        adds = transfer.op == REDUCE
        step = self._add(
            ("recv", transfer.src), "rrc" if adds else "r", place if adds else remote.home[chunk], place, 1, after
        )
        self._writer[chunk] = step

    def _add(self, key: Key, kind: str, source: Home, target: Home, count: int, after: list[Step]) -> Step:
        """Append a step, behind nops for all but one of its dependencies; return (block number, step number)."""
        number = self._block_number(key)
        block = self.blocks[number]
        latest: dict[int, int] = {}
        for other, step in after:
            if other != number and step > block.waited.get(other, -1):
                latest[other] = max(step, latest.get(other, -1))
        block.waited |= latest
        waits = sorted(latest.items()) or [(-1, -1)]
        for other, step in waits:
            if other >= 0:
                self.blocks[other].steps[step]["hasdep"] = 1
        for wait in waits[:-1]:
            block.append("nop", ("i", -1), ("o", -1), 0, wait)
        block.append(kind, source, target, count, waits[-1])
        if len(block.steps) > _MAX_STEPS:
            raise InputError(
                f"{self.schedule.name}: rank {self.rank} needs over {_MAX_STEPS} steps in an MSCCL thread block"
            )
        return number, len(block.steps) - 1

    def _block_number(self, key: Key) -> int:
        if key not in self._block_of:
            kind, peer = key
            src, dst = (self.rank, peer) if kind == "send" else (peer, self.rank)
            channel = 0 if kind == "copy" else ((dst - src) % self.schedule.world_size - 1) // _MAX_PEERS
            self._block_of[key] = len(self.blocks)
            self.blocks.append(_Block(peer if kind == "send" else -1, peer if kind == "recv" else -1, channel))
        return self._block_of[key]

    def lines(self) -> Iterator[str]:
        """The XML lines of this rank."""
        counts = {
            "i_chunks": self.placement.inputs,
            "o_chunks": self.placement.outputs,
            "s_chunks": self.placement.scratch,
        }
        yield "  " + _tag("gpu", {"id": self.rank, **counts}, ">")
        for number, block in enumerate(self.blocks):
            yield "    " + _tag(
                "tb", {"id": number, "send": block.send, "recv": block.recv, "chan": block.channel}, ">"
            )
            for step in block.steps:
                yield "      " + _tag("step", step, "/>")
            yield "    </tb>"
        yield "  </gpu>"
