"""Count what a call over NCCL asks of CUDA and NCCL, and price it by published costs. Needs no GPU.

./run evaluate gpu.charges                       ring and late_join of 3, 8 and 16 ranks, 1 and 64 MiB
./run evaluate gpu.charges -n 8 --bytes 256M --json charges.json

A stand-in for streams, events and NCCL takes the calls that the executor makes, charges for each, and moves messages as
fluids between ports. Costs: a group is a kernel of NCCL's, with the base latency that NCCL's own tuning model has for
its ring and Simple protocol (8.4 us), and a message takes that model's latency of a hop over NVLink (3.4 us); both are
in NCCL's src/graph/tuning.cc. A call from Python takes 5 us of the CPU, as on the H200 (results/gpu.md).
"""

import argparse
import heapq
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

from lanterne.bench.output import report
from lanterne.bench.output.options import add_json
from lanterne.bench.output.units import format_nbytes, parse_nbytes, parse_rate_bytes_per_s, whole
from lanterne.collectives.algorithms.catalogue import find_algorithm
from lanterne.collectives.auto.predict import Links, chunk_count, nodes_of_links
from lanterne.collectives.auto.tuning import GPUS, late_num_chunks
from lanterne.collectives.execute.arguments import Key
from lanterne.collectives.execute.device import DeviceSide, Entry
from lanterne.collectives.execute.plans import RankPrograms
from lanterne.collectives.execute.stream_execution import StreamExecution
from lanterne.collectives.topology.topology import Topology
from lanterne.kernels.dtypes import find_dtype
from lanterne.transport.nccl.over_nccl import NcclTransport

# A stream of the stand-in, by name, and an event, by number.
StreamName: TypeAlias = str
USER = "user"


class Charges(NamedTuple):
    """Costs in seconds and bytes a second.

    Attributes:
        host_call_s: a call of CUDA's or NCCL's from Python.
        launch_s: the launch of a captured call.
        group_s, hop_s: NCCL's kernel of a group, and what each message takes beside its bytes.
        kernel_s: a fold or copy, beside its bytes.
        link_bytes_per_s: each way of each GPU's port.
        memory_bytes_per_s: of the device's memory.
        nic_bytes_per_s, nic_hop_s: as link_bytes_per_s and hop_s, of messages between nodes.
        node_ranks: GPUs of a node.
    """

    host_call_s: float = 5e-6
    launch_s: float = 20e-6
    group_s: float = 8.4e-6
    hop_s: float = 3.4e-6
    kernel_s: float = 2e-6
    link_bytes_per_s: float = 360e9
    memory_bytes_per_s: float = 3e12
    nic_bytes_per_s: float = 50e9
    nic_hop_s: float = 14e-6
    node_ranks: int = 1 << 16

    def are_apart(self, src: int, dst: int) -> bool:
        """Whether a message between the ranks leaves its node."""
        return src // self.node_ranks != dst // self.node_ranks

    def native_s(self, ranks: int, nbytes: int) -> float:
        """Return the time of ncclAllReduce as a ring: one kernel, 2 (n - 1) hops, its bytes.

        Between nodes a ring on each NIC, one after the other through the GPUs of a node, is as fast as all NICs are, or
        as the links inside.
        """
        hops, nodes = 2 * (ranks - 1), -(-ranks // self.node_ranks)
        if nodes == 1:
            return self.group_s + hops * (self.hop_s + nbytes / ranks / self.link_bytes_per_s)
        apart = 2 * (nodes - 1)
        rate = min(self.link_bytes_per_s, self.nic_bytes_per_s * self.node_ranks)
        return self.group_s + (hops - apart) * self.hop_s + apart * self.nic_hop_s + hops / ranks * nbytes / rate


class Item(NamedTuple):
    """A piece of queued work: `kind` is group, kernel, record or wait; `queued` counts the host calls up to it."""

    kind: str
    stream: StreamName
    queued: int
    # (sends, bytes, peer) of a group; None otherwise.
    messages: tuple[tuple[bool, int, int], ...] = ()
    nbytes: int = 0
    event: int = -1


class ChargedRuntime:
    """The verbs of CudaRuntime that a queued call uses, each of which is one host call, and NCCL's groups."""

    def __init__(self, dtype_nbytes: int) -> None:
        self.items: list[Item] = []
        self.host_calls = 0
        self._dtype_nbytes = dtype_nbytes
        self._events = count()

    def _add(self, kind: str, stream: StreamName, calls: int = 1, **fields: Any) -> None:
        self.host_calls += calls
        self.items.append(Item(kind, stream, self.host_calls, **fields))

    def record(self, stream: StreamName) -> int:
        event = next(self._events)
        self._add("record", stream, event=event)
        return event

    def wait_event(self, event: int, stream: StreamName) -> None:
        self._add("wait", stream, event=event)

    def copy(self, _target: int, _source: int, nbytes: int, stream: StreamName) -> None:
        self._add("kernel", stream, nbytes=2 * nbytes)

    def prepare_fold(self, _op: str, _dtype: object, num_inputs: int) -> Callable[..., None]:
        def fold(count: int, *_: int, stream: StreamName) -> None:
            self._add("kernel", stream, nbytes=(num_inputs + 1) * count * self._dtype_nbytes)

        return fold

    def group(self, messages: Sequence[tuple[bool, int, int, int]]) -> None:
        """Take the messages of NcclChannel.group: a start, each message and an end are host calls."""
        found = tuple((sends, nbytes, peer) for sends, _, nbytes, peer in messages if nbytes)
        self._add("group", "messages", 2 + len(found), messages=found)


class ChargedSide(DeviceSide):
    """A DeviceSide on a ChargedRuntime."""

    def __init__(self, ranks: int, dtype_nbytes: int) -> None:
        runtime: Any = ChargedRuntime(dtype_nbytes)
        self.runtime = runtime
        self.streams = "messages", "work"
        channel: Any = SimpleNamespace(
            ranks=range(ranks), world_size=ranks, group=runtime.group, failure=None, watch=lambda *_: None
        )
        self.channel = channel

    def region(self, nbytes: int) -> Any:
        return SimpleNamespace(address=0, nbytes=nbytes)


def queued(ranks: int, algorithm: str, nbytes: int, links: Links = GPUS) -> list[list[Item]]:
    """Return what each rank queues for one all_reduce of float32, of which the last may be late."""
    dtype, line = find_dtype("float32"), find_algorithm("all_reduce", algorithm)
    chunks = None
    if line.late or line.nodes:
        chunks = (late_num_chunks if line.late else chunk_count)(line, ranks, nbytes, links)
    nodes = nodes_of_links(links) or (tuple(range(ranks)),)
    topology = links if isinstance(links, Topology) else None
    model = GPUS if topology is None else topology.slowest
    late = ranks - 1 if line.late else None
    key = Key(
        "all_reduce", algorithm, "sum", dtype.name, nbytes // dtype.nbytes, None, late, chunks, None, None, "device"
    )
    found = []
    for rank in range(ranks):
        side = ChargedSide(ranks, dtype.nbytes)
        group: Any = SimpleNamespace(
            rank=rank,
            world_size=ranks,
            nodes=nodes,
            tuning=SimpleNamespace(model=model, links=links, model_over_nodes=model, nic_sharers=1, own_nic_sharers=1),
            transport=SimpleNamespace(capabilities=NcclTransport.capabilities),
            device_side=lambda side=side: side,
        )
        program = RankPrograms(group).find(key, dtype, form=False)
        runtime: Any = side.runtime
        channel: Any = side.channel
        execution = StreamExecution(program, side, channel, "sum", dtype, algorithm)
        execution.bind(None, None, Entry(USER, runtime.record(USER)))
        execution.start()
        found.append(runtime.items)
    return found


class _Flow:
    """A message under way."""

    def __init__(self, src: int, dst: int, nbytes: int) -> None:
        self.src, self.dst, self.left = src, dst, float(nbytes)
        self.begun: list[tuple[int, int]] = []


class _Clock:
    """Runs what the ranks have queued: streams in order, messages once both ends have begun, ports shared evenly."""

    def __init__(
        self, ranks: Sequence[Sequence[Item]], charges: Charges, starts_s: Sequence[float], *, captured: bool
    ) -> None:
        self._ranks, self._charges, self._captured, self._starts_s = ranks, charges, captured, starts_s
        self._events: list[tuple[float, int, str, int, int]] = []
        self._order = count()
        self._streams: list[dict[str, list[int]]] = []
        for items in ranks:
            streams = defaultdict[str, list[int]](list)
            for index, item in enumerate(items):
                streams[item.stream].append(index)
            self._streams.append({name: indices[::-1] for name, indices in streams.items()})
        self._done: list[set[int]] = [set() for _ in ranks]
        self._waiting: dict[tuple[int, int], int] = {}
        self._posted: list[dict[tuple[bool, int], int]] = [defaultdict(int) for _ in ranks]
        self._flows: dict[tuple[int, int, int], _Flow] = {}
        self._active: list[_Flow] = []
        self.now_s = 0.0

    def run(self) -> float:
        """Return when the last rank's user stream has passed the call, s."""
        for rank, streams in enumerate(self._streams):
            for name in streams:
                self._start_next(rank, name)
        while self._events or self._active:
            rates = self._rates()
            ends = [self.now_s + flow.left / rate for flow, rate in zip(self._active, rates, strict=True)]
            at_s = min([*ends, *(event[0] for event in self._events[:1])])
            for flow, rate in zip(self._active, rates, strict=True):
                flow.left -= rate * (at_s - self.now_s)
            self.now_s = at_s
            over = [flow for flow in self._active if flow.left <= 0.5]
            self._active = [flow for flow in self._active if flow.left > 0.5]
            for flow in over:
                charges = self._charges
                hop_s = charges.nic_hop_s if charges.are_apart(flow.src, flow.dst) else charges.hop_s
                for rank, index in flow.begun:
                    self._push(hop_s, "message", rank, index)
            while self._events and self._events[0][0] <= self.now_s:
                _, _, what, rank, index = heapq.heappop(self._events)
                self._happen(what, rank, index)
        left = [index for streams in self._streams for indices in streams.values() for index in indices]
        assert not left, f"{len(left)} pieces of work wait for each other"
        return self.now_s

    def _push(self, after_s: float, what: str, rank: int, index: int) -> None:
        heapq.heappush(self._events, (self.now_s + after_s, next(self._order), what, rank, index))

    def _rates(self) -> list[float]:
        charges = self._charges
        # Of a rank's port inside its node, and of its NIC.
        sends, receives = defaultdict[tuple[int, bool], int](int), defaultdict[tuple[int, bool], int](int)
        apart = [charges.are_apart(flow.src, flow.dst) for flow in self._active]
        for flow, leaves in zip(self._active, apart, strict=True):
            sends[flow.src, leaves] += 1
            receives[flow.dst, leaves] += 1
        return [
            (charges.nic_bytes_per_s if leaves else charges.link_bytes_per_s)
            / max(sends[flow.src, leaves], receives[flow.dst, leaves])
            for flow, leaves in zip(self._active, apart, strict=True)
        ]

    def _start_next(self, rank: int, stream: str) -> None:
        """Start what `stream` has first, or leave it until what it waits for is done."""
        indices = self._streams[rank][stream]
        if not indices:
            return
        index = indices[-1]
        item = self._ranks[rank][index]
        if item.kind == "wait" and item.event not in self._done[rank]:
            return
        charges = self._charges
        at_s = charges.launch_s if self._captured else item.queued * charges.host_call_s
        after_s = max(0.0, self._starts_s[rank] + at_s - self.now_s)
        if item.kind == "kernel":
            after_s += charges.kernel_s + item.nbytes / charges.memory_bytes_per_s
        elif item.kind == "group":
            after_s += charges.group_s
        self._push(after_s, item.kind, rank, index)

    def _happen(self, what: str, rank: int, index: int) -> None:
        item = self._ranks[rank][index]
        if what == "group" and item.messages:
            self._waiting[rank, index] = len(item.messages)
            for sends, nbytes, peer in item.messages:
                self._post(rank, index, peer, nbytes, sends=sends)
            return
        if what == "message":
            self._waiting[rank, index] -= 1
            if self._waiting[rank, index]:
                return
        self._streams[rank][item.stream].pop()
        self._start_next(rank, item.stream)
        if item.kind == "record":
            self._done[rank].add(item.event)
            for stream in self._streams[rank]:
                if stream != item.stream and self._waits_for(rank, stream, item.event):
                    self._start_next(rank, stream)

    def _waits_for(self, rank: int, stream: str, event: int) -> bool:
        indices = self._streams[rank][stream]
        first = self._ranks[rank][indices[-1]] if indices else None
        return first is not None and (first.kind, first.event) == ("wait", event)

    def _post(self, rank: int, index: int, peer: int, nbytes: int, *, sends: bool) -> None:
        number = self._posted[rank][sends, peer]
        self._posted[rank][sends, peer] += 1
        src, dst = (rank, peer) if sends else (peer, rank)
        flow = self._flows.setdefault((src, dst, number), _Flow(src, dst, nbytes))
        flow.begun.append((rank, index))
        if len(flow.begun) == 2:
            assert flow.left == nbytes, "both ends of a message have the same size"
            self._active.append(flow)


def time_s(
    ranks: Sequence[Sequence[Item]], charges: Charges, *, captured: bool = False, starts_s: Sequence[float] = ()
) -> float:
    """Return from the first call to the last end, s; `starts_s`: when each rank calls, at once if not given."""
    return _Clock(ranks, charges, starts_s or [0.0] * len(ranks), captured=captured).run()


def row(ranks: int, algorithm: str, nbytes: int, charges: Charges) -> dict[str, Any]:
    """Return the counts, of the rank that has most of each, and the times of one call."""
    items = queued(ranks, algorithm, nbytes)
    groups = [[item for item in mine if item.kind == "group"] for mine in items]
    messages = [nbytes for mine in groups for group in mine for sends, nbytes, _ in group.messages if sends]
    native_s = charges.native_s(ranks, nbytes)
    eager_s, captured_s = (time_s(items, charges, captured=captured) for captured in (False, True))
    return {
        "algorithm": algorithm,
        "ranks": ranks,
        "nbytes": nbytes,
        "groups": max(map(len, groups)),
        "messages_per_rank": max(sum(len(group.messages) for group in mine) for mine in groups),
        "largest_message_nbytes": max(messages),
        "smallest_message_nbytes": min(messages),
        "streams": max(len({item.stream for item in mine if item.kind in ("group", "kernel")}) for mine in items),
        "host_calls": max(mine[-1].queued for mine in items),
        "nodes": max(sum(item.kind in ("group", "kernel") for item in mine) for mine in items),
        "eager_s": eager_s,
        "captured_s": captured_s,
        "native_s": native_s,
        "eager_ratio": native_s / eager_s,
        "captured_ratio": native_s / captured_s,
    }


COLUMNS = [
    *(("all_reduce", ""), ("ranks", ""), ("bytes", ""), ("groups", ""), ("messages", ""), ("of bytes", "")),
    *(("streams", ""), ("host", "calls"), ("nodes", ""), ("eager", "us"), ("captured", "us"), ("native", "us")),
    *(("native /", "eager"), ("native /", "captured")),
]


def cells(found: dict[str, Any]) -> list[object]:
    """Return a row of the table."""
    sizes = f"{format_nbytes(found['smallest_message_nbytes'])} to {format_nbytes(found['largest_message_nbytes'])}"
    return [
        *(found["algorithm"], found["ranks"], format_nbytes(found["nbytes"])),
        *(found["groups"], found["messages_per_rank"], sizes, found["streams"], found["host_calls"], found["nodes"]),
        *(f"{1e6 * found[name]:.0f}" for name in ("eager_s", "captured_s", "native_s")),
        *(f"{found[name]:.2f}" for name in ("eager_ratio", "captured_ratio")),
    ]


def show(document: dict[str, Any], stream: Any) -> None:
    """Print the table of `rows`."""
    report.print_table(COLUMNS, [cells(row) for row in document["rows"]], left=(0,), file=stream)


def main(argv: Sequence[str] | None = None) -> int:
    """Count and price the calls that the options name."""
    parser = argparse.ArgumentParser(
        prog="./run evaluate gpu.charges", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", type=whole(2), action="append", metavar="N", help="ranks (default 3, 8 and 16)")
    parser.add_argument("--bytes", type=parse_nbytes, action="append", metavar="SIZE", help="default 1M and 64M")
    parser.add_argument("--algorithms", default="ring,late_join", metavar="A,A")
    parser.add_argument("--link", type=parse_rate_bytes_per_s, metavar="RATE", help="of a port (default 2880gbit)")
    add_json(parser, "every row")
    args = parser.parse_args(argv)
    charges = Charges() if args.link is None else Charges(link_bytes_per_s=args.link)
    rows = [
        row(ranks, algorithm, nbytes, charges)
        for nbytes in args.bytes or (1 << 20, 64 << 20)
        for algorithm in args.algorithms.split(",")
        for ranks in args.n or (3, 8, 16)
    ]
    report.tell(args.json, report.envelope(charges=charges._asdict(), rows=rows), show)
    return 0


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        sys.exit(main())
