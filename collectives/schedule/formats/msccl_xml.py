"""The XML of an MSCCL program: its thread blocks and their steps as values, each number checked.

Facts from the loader and the tools of MSCCL: names of collectives, buffers and steps; a step reads `src`, writes `dst`
and waits for step `deps` of thread block `depid`; messages match in order, by channel, sender and receiver.
"""

import re
from typing import NamedTuple
from xml.etree import ElementTree

from lanterne.collectives.schedule.contracts import CONTRACTS
from lanterne.collectives.schedule.ir import MAX_CHUNKS, MAX_WORLD_SIZE, CollectiveSchedule, ScheduleBuilder
from lanterne.errors import ScheduleError, one_of

_COLLECTIVES = {
    "allreduce": "all_reduce",
    "reduce": "reduce",
    "reducescatter": "reduce_scatter",
    "reduce_scatter": "reduce_scatter",
    "broadcast": "broadcast",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
}


class StepKind(NamedTuple):
    """What a step does: it `receives`, `adds` to what src holds, `stores` in dst, `sends`."""

    receives: bool = False
    adds: bool = False
    stores: bool = False
    sends: bool = False


_KINDS = {
    "nop": StepKind(),
    "s": StepKind(sends=True),
    "r": StepKind(receives=True, stores=True),
    "rcs": StepKind(receives=True, stores=True, sends=True),
    "rrc": StepKind(receives=True, adds=True, stores=True),
    "rrs": StepKind(receives=True, adds=True, sends=True),
    "rrcs": StepKind(receives=True, adds=True, stores=True, sends=True),
    "cpy": StepKind(stores=True),
    "re": StepKind(adds=True, stores=True),
}
_BUFFERS = "ios"
# In a file, and of chunks of all ranks; more would take minutes.
MAX_STEPS, MAX_PLACES = 1 << 18, 1 << 22


class Step(NamedTuple):
    """A step, `where` it stands, for people."""

    kind: StepKind
    src: tuple[str, int]
    dst: tuple[str, int]
    chunks: int
    wait: tuple[int, int]
    where: str


class Block(NamedTuple):
    """A thread block."""

    rank: int
    send: int
    recv: int
    channel: int
    steps: list[Step]


class MscclProgram(NamedTuple):
    """An MSCCL program.

    Attributes:
        head: its schedule without transfers, which says which chunk starts and ends where.
        blocks: of all ranks.
        in_place: input and output are the same memory, as far as they have the same chunks.
    """

    head: CollectiveSchedule
    blocks: list[Block]
    in_place: bool


def parse_msccl(text: str) -> MscclProgram:
    """The MscclProgram of an XML document.

    Raises:
        ScheduleError: it is none; names the place.
    """
    if re.search(r"<!(DOCTYPE|ENTITY)", text):
        raise ScheduleError("msccl: got a document type, expected none")
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as error:
        raise ScheduleError(f"msccl: got no XML ({error})") from None
    if root.tag != "algo":
        raise ScheduleError(f"msccl: got element {root.tag!r}, expected algo")
    blocks, sizes = _parse(root)
    in_place = root.get("inplace") == "1" and root.get("outofplace") == "0"
    return MscclProgram(_head(root, sizes), blocks, in_place)


def _number(element: ElementTree.Element, key: str, where: str, least: int = 0, most: int = MAX_CHUNKS) -> int:
    text = element.get(key)
    if text is None or not re.fullmatch(r"-?\d{1,9}", text) or not least <= int(text) <= most:
        raise ScheduleError(f"msccl: {where}: got {key} {text!r}, expected {least} to {most}")
    return int(text)


def _parse(root: ElementTree.Element) -> tuple[list[Block], list[tuple[int, int]]]:
    """(all thread blocks, the chunks of each rank's input and output)."""
    ranks = _number(root, "ngpus", "algo", 1, MAX_WORLD_SIZE)
    sizes: dict[int, tuple[int, int]] = {}
    blocks: list[Block] = []
    total = 0
    for gpu in root.iter("gpu"):
        rank = _number(gpu, "id", "gpu", 0, ranks - 1)
        if rank in sizes:
            raise ScheduleError(f"msccl: gpu {rank}: got it twice, expected each once")
        sizes[rank] = _number(gpu, "i_chunks", f"gpu {rank}"), _number(gpu, "o_chunks", f"gpu {rank}")
        first, places = len(blocks), {}
        for tb in gpu.iter("tb"):
            number = _number(tb, "id", f"gpu {rank}, tb")
            where = f"gpu {rank}, tb {number}"
            places[number] = len(blocks)
            send, recv = (_number(tb, key, where, -1, ranks - 1) for key in ("send", "recv"))
            steps = [_step(step, f"{where}, step {at}") for at, step in enumerate(tb.iter("step"))]
            blocks.append(Block(rank, send, recv, _number(tb, "chan", where, -1), steps))
            total += sum(max(1, step.chunks) for step in steps)
        if total > MAX_STEPS:
            raise ScheduleError(f"msccl: got over {MAX_STEPS} steps, expected at most so many")
        for at, block in enumerate(blocks[first:], first):
            blocks[at] = block._replace(steps=[_with_block(step, places) for step in block.steps])
    if len(sizes) != ranks:
        raise ScheduleError(f"msccl: got {len(sizes)} gpus, expected the {ranks} of ngpus")
    return blocks, [sizes[rank] for rank in range(ranks)]


def _step(element: ElementTree.Element, where: str) -> Step:
    kind = element.get("type", "")
    if kind not in _KINDS:
        raise ScheduleError(f"msccl: {where}.type: {one_of(kind, _KINDS)}")
    if kind == "nop":
        src = dst = ("i", -1)
    else:
        places = ((element.get(f"{side}buf", ""), _number(element, f"{side}off", where, -1)) for side in ("src", "dst"))
        src, dst = places
    for buffer, _ in (src, dst):
        if buffer not in _BUFFERS or not buffer:
            raise ScheduleError(f"msccl: {where}: {one_of(buffer, list(_BUFFERS))} as buffer")
    wait = _number(element, "depid", where, -1), _number(element, "deps", where, -1)
    return Step(_KINDS[kind], src, dst, _number(element, "cnt", where, 0, MAX_STEPS), wait, where)


def _with_block(step: Step, places: dict[int, int]) -> Step:
    """`step`, which waits for a block by its place among all."""
    block, at = step.wait
    if block < 0:
        return step
    if block not in places:
        raise ScheduleError(f"msccl: {step.where}: got depid {block}, expected a thread block of this gpu")
    return step._replace(wait=(places[block], at))


def _head(root: ElementTree.Element, sizes: list[tuple[int, int]]) -> CollectiveSchedule:
    """The schedule without transfers: its contract says which chunk starts and ends where."""
    collective, name = root.get("coll", ""), root.get("name", "")
    if collective not in _COLLECTIVES:
        raise ScheduleError(f"msccl: algo.coll: {one_of(collective, _COLLECTIVES)}")
    collective, ranks = _COLLECTIVES[collective], len(sizes)
    chunks = _number(root, "nchunksperloop", "algo", 1) * (ranks if collective == "all_to_all" else 1)
    parts = CONTRACTS[collective].parts(ranks)
    if chunks % parts or chunks * ranks > MAX_PLACES:
        most = MAX_PLACES // ranks
        raise ScheduleError(
            f"msccl: algo: got {chunks} chunks for {collective}, expected a multiple of {parts}, at most {most}"
        )
    place = None
    if CONTRACTS[collective].rooted:
        side = 0 if collective == "broadcast" else 1
        having = [rank for rank, size in enumerate(sizes) if size[side]]
        if len(having) != 1:
            raise ScheduleError(f"msccl: {collective}: got {len(having)} ranks with data, expected the root alone")
        place = having[0]
    named = re.match(rf"(\w+)_{collective}\(", name)
    label = named[1] if named else name[:40] or "msccl"
    return ScheduleBuilder(collective, label, ranks, chunks, root=place, note="read from MSCCL XML").build()
