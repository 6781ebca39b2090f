"""Benchmark point to point between two ranks: half a round trip, one way, and both ways at once, over sizes.

Several transports, and bare mpi4py as the peer, take turns in one run, so that what disturbs one disturbs all; every
block checks the bytes that arrived.

  lanterne bench p2p                                    mpi against bare mpi4py
  lanterne bench p2p --transport mpi,ucx,mpi4py --bytes 8,64MiB --json p2p.json
  lanterne lab --hosts 2 --rate 10gbit -- lanterne bench p2p --transport tcp,tcp-unsealed,ucx --bytes 8,64M
  lanterne bench p2p --device cuda                      GPU to GPU over nccl, 64 to 256 MiB: where NCCL's time has steps

`latency` is half a round trip; `one way` streams messages and waits for the last to be acknowledged; `both ways` sends
and receives at once and counts both directions. `over mpi4py` is the median of the ratios of neighbouring blocks; so
are the lines above the table, of what tcp's seals cost beside tcp-unsealed, and of tcp beside ucx. The lab trusts its
network: tcp is sealed there if LANTERNE_TRUSTED_NETWORK=0 stands before the command, encrypted if LANTERNE_ENCRYPT=1.
On GPUs messages are queued on a stream and times are the device's, by events; StragglAR (appendix H) saw NCCL's time
rise in steps between 64 and 256 MiB.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from lanterne.bench.output import report
from lanterne.bench.output.given_options import GivenOptions
from lanterne.bench.output.options import add_json, add_timeout
from lanterne.bench.output.spread import COVERAGE, median_interval
from lanterne.bench.output.units import format_nbytes, format_time, parse_sizes, parse_time_s
from lanterne.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lanterne.transport.base import Recv, Send, Transport
    from lanterne.transport.rank_group import Group

MODES = ("latency", "one_way", "both_ways")
PEER = "mpi4py"
# tcp without the digests that it has between hosts.
UNSEALED = "tcp-unsealed"
SIZES = {"cpu": "8,1K,64K,1M,64M", "cuda": ",".join(f"{mib}M" for mib in range(64, 257, 16))}
# Each block lasts about this long, so that small messages are repeated often and large ones a few times.
BLOCK_S = 0.1
MAX_REPEATS = 2000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--transport", metavar="A,B", help=f"of mpi, tcp, {UNSEALED}, ucx, {PEER} (default mpi,{PEER}); on GPUs nccl"
    )
    parser.add_argument("--device", default="cpu", choices=SIZES, help="where the messages are (default cpu)")
    parser.add_argument("--bytes", metavar="SIZE,...", help="default 8,1K,64K,1M,64M; on GPUs 64M to 256M by 16M")
    parser.add_argument("--blocks", type=int, default=7, metavar="K", help="blocks of each, in turn (default 7)")
    add_timeout(parser)
    add_json(parser)


def run(args: GivenOptions) -> int:
    # Of each of two ranks: what it sends, the 32-bit numbers it is made of, what it expects and what it receives.
    sizes = parse_sizes(args.bytes or SIZES[args.device], "--bytes", copies=14)
    timeout_s = parse_time_s(args.timeout, "--timeout")
    on_device = args.device == "cuda"
    transports = (args.transport or ("nccl" if on_device else f"mpi,{PEER}")).split(",")
    if on_device != (transports == ["nccl"]):
        raise InputError(f"--transport: got {args.transport} with --device {args.device}, expected nccl on cuda only")
    if args.blocks < 1:
        raise InputError(f"--blocks: got {args.blocks}, expected at least 1")
    from lanterne.transport.job.bootstrap import connect, in_a_job

    if not in_a_job():
        from lanterne.transport.job.launch import launch

        if on_device:
            from lanterne.kernels.arrays import require_device

            require_device()
        launcher = "direct" if on_device else "mpi"
        return launch(args.own_command(), 2, launcher=launcher)

    with connect(timeout_s) as group:
        if group.world_size != 2:
            raise InputError(f"bench p2p: got {group.world_size} ranks, expected 2")
        kind = OnDevice if on_device else Ours
        contenders: dict[str, Ours | Bare] = {
            name: Bare() if name == PEER else kind(open_contender(name, group, timeout_s)) for name in transports
        }
        records = [
            record
            for nbytes in sizes
            for mode in MODES
            for record in compare(group, contenders, nbytes, mode, args.blocks)
        ]
        for contender in contenders.values():
            contender.close()
    report.progress("")
    if group.rank == 0:
        document = report.envelope(results=records)
        report.tell(args.json, document, print_records)
    return int(any(record["wrong"] for record in records))


def open_contender(name: str, group: Group, timeout_s: float) -> Transport:
    """The transport `name`, or tcp without seals, between the ranks of `group`."""
    from lanterne.transport.registry import open_transport
    from lanterne.transport.tcp.over_tcp import TcpTransport

    if name == UNSEALED:
        return TcpTransport(group, timeout_s, sealed=False)
    return open_transport(name, group, timeout_s)


class Ours:
    """A lanterne transport behind the three verbs of the benchmark; `clock` is what `timed` goes by."""

    clock = "host"

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.peer: int = 1 - transport.rank
        self._send: tuple[Send, ...] = ()
        self._recv: tuple[Recv, ...] = ()

    def prepare(self, out: NDArray[Any], into: NDArray[Any]) -> None:
        from lanterne.transport.base import Recv, Send

        source, target = self.transport.register(out), self.transport.register(into)
        self._send = (Send(source, 0, source.nbytes, self.peer),)
        self._recv = (Recv(target, 0, target.nbytes, self.peer),)

    def send(self) -> None:
        self.transport.post(self._send).wait()

    def recv(self) -> None:
        self.transport.post(self._recv).wait()

    def exchange(self) -> None:
        self.transport.post(self._recv + self._send).wait()

    def timed(self, work: Callable[[], object]) -> float:
        """Seconds that `work()` takes."""
        return host_s(work)

    def num_wrong(self, into: NDArray[Any], expected: NDArray[Any]) -> int:
        """How many bytes that have arrived in the `into` of `prepare` are not the `expected` ones."""
        return num_different(into, expected)

    def close(self) -> None:
        self.transport.close()


def num_different(into: NDArray[Any], expected: NDArray[Any]) -> int:
    """How many bytes of two arrays of the host differ."""
    import numpy as np

    return int(np.count_nonzero(into != expected))


def host_s(work: Callable[[], object]) -> float:
    """Seconds that `work()` takes by this host's clock."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


class OnDevice(Ours):
    """Messages of device memory, queued on the current stream; its device tells how long they take."""

    clock = "device"

    # What was sent last, and what is expected, here and on the device, where they are compared.
    _sent: tuple[Any, Any] = (None, None)
    _expected: tuple[Any, Any] = (None, None)

    def prepare(self, out: NDArray[Any], into: NDArray[Any]) -> None:
        from lanterne.kernels.arrays import import_cupy

        if self._sent[0] is not out:
            self._sent = out, import_cupy().asarray(out)
            self._into: Any = import_cupy().asarray(into)
        # So that nothing of an earlier block is taken for what arrives.
        self._into.fill(0)
        super().prepare(self._sent[1], self._into)

    def send(self) -> None:
        self.transport.post(self._send)

    def recv(self) -> None:
        self.transport.post(self._recv)

    def exchange(self) -> None:
        self.transport.post(self._recv + self._send)

    def timed(self, work: Callable[[], object]) -> float:
        from lanterne.kernels.staging import wait_for

        runtime = self.transport.runtime
        assert runtime is not None
        stream = runtime.current_stream()
        start = runtime.record(stream, timed=True)
        work()
        stop = runtime.record(stream, timed=True)
        wait_for(lambda: runtime.is_done(stop), "messages between GPUs", self.transport.timeout_s)
        return runtime.elapsed_s(start, stop)

    def num_wrong(self, into: NDArray[Any], expected: NDArray[Any]) -> int:
        from lanterne.kernels.arrays import import_cupy

        if self._expected[0] is not expected:
            self._expected = expected, import_cupy().asarray(expected)
        return int(import_cupy().count_nonzero(self._into != self._expected[1]))


class Bare:
    """mpi4py itself."""

    clock = "host"

    def __init__(self) -> None:
        from lanterne.transport.mpi.over_mpi import load_mpi

        self._mpi = load_mpi()
        self._comm = self._mpi.COMM_WORLD.Dup()
        self.peer: int = 1 - self._comm.rank

    def prepare(self, out: NDArray[Any], into: NDArray[Any]) -> None:
        self._out = out
        self._into = into

    def send(self) -> None:
        self._comm.Send(self._out, self.peer)

    def recv(self) -> None:
        self._comm.Recv(self._into, self.peer)

    def exchange(self) -> None:
        self._comm.Sendrecv(self._out, self.peer, 0, self._into, self.peer)

    def timed(self, work: Callable[[], object]) -> float:
        return host_s(work)

    def num_wrong(self, into: NDArray[Any], expected: NDArray[Any]) -> int:
        return num_different(into, expected)

    def close(self) -> None:
        pass


def compare(
    group: Group, contenders: Mapping[str, Ours | Bare], nbytes: int, mode: str, blocks: int
) -> list[dict[str, Any]]:
    """Time `mode` at one size for every contender in turn, `blocks` times; the records, on every rank."""
    import numpy as np

    index = np.arange(nbytes, dtype=np.uint32)
    out, expected = (
        (index * np.uint32(31) + np.uint32(7 * rank)).astype(np.uint8) for rank in (group.rank, 1 - group.rank)
    )
    into = np.zeros(nbytes, np.uint8)
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    wrong = dict.fromkeys(contenders, 0)
    repeats = 1
    for block in range(-1, blocks):
        for name, contender in contenders.items():
            report.progress(f"{mode} {nbytes} bytes {name} {max(block, 0) + 1}/{blocks}")
            into.fill(0)
            contender.prepare(out, into)
            group.barrier("p2p")
            time_s = _block(group.rank, contender, mode, repeats)
            if mode != "one_way" or group.rank == 1:
                wrong[name] += contender.num_wrong(into, expected)
            if block >= 0:
                samples[name].append(time_s)
            else:
                # Rank 0's first block decides how often the others repeat; one answer for both ranks and all
                # contenders.
                slowest_s = max(float(part) for part in group.exchange("p2p", repr(time_s).encode()))
                repeats = max(repeats, min(MAX_REPEATS, int(BLOCK_S / max(slowest_s, 1e-6))))
    totals = [sum(int(part) for part in group.exchange("p2p", str(wrong[name]).encode())) for name in contenders]
    factor = 2 if mode == "both_ways" else 1
    return [
        {
            "mode": mode,
            "transport": name,
            "nbytes": nbytes,
            "repeats": repeats,
            "clock": contenders[name].clock,
            "time_s": samples[name],
            "time_median_interval": median_interval(samples[name]),
            "gbytes_per_s": factor * nbytes / statistics.median(samples[name]) / 1e9,
            "over_mpi4py": _ratio(samples, name),
            "wrong": total,
        }
        for name, total in zip(contenders, totals, strict=True)
    ]


def _block(rank: int, contender: Ours | Bare, mode: str, repeats: int) -> float:
    """Seconds per message of one block, as this rank sees it."""
    first, second = (contender.send, contender.recv) if rank == 0 else (contender.recv, contender.send)
    # The acknowledgement of one way costs one more message, of the same size: counted as such.
    steps, messages = {
        "latency": ((first, second) * repeats, 2 * repeats),
        "both_ways": ((contender.exchange,) * repeats, repeats),
        "one_way": ((first,) * repeats + (second,), repeats + 1),
    }[mode]

    def work() -> None:
        for step in steps:
            step()

    return contender.timed(work) / messages


def _ratio(samples: Mapping[str, Sequence[float]], name: str) -> float | None:
    if PEER not in samples or name == PEER:
        return None
    return statistics.median(ours / bare for ours, bare in zip(samples[name], samples[PEER], strict=True))


def print_records(document: dict[str, Any], file: TextIO) -> None:
    """The table of a p2p document."""
    columns = [("mode", ""), ("transport", ""), ("size", "B"), ("time", "median")]
    columns += [(f"{COVERAGE:.0%}", "from"), ("", "to"), ("min", ""), ("max", "")]
    columns += [("bandwidth", "GB/s"), ("time over", "mpi4py"), ("#wrong", "")]
    rows = [
        (
            record["mode"],
            record["transport"],
            record["nbytes"],
            format_time(statistics.median(record["time_s"])),
            *(format_time(record["time_median_interval"][end]) for end in ("low", "high")),
            format_time(min(record["time_s"])),
            format_time(max(record["time_s"])),
            f"{record['gbytes_per_s']:.3g}",
            "-" if record["over_mpi4py"] is None else f"{record['over_mpi4py']:.2f}",
            record["wrong"],
        )
        for record in document["results"]
    ]
    report.print_table(columns, rows, notes=comparisons(document["results"]), left=(0, 1), file=file)


def comparisons(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each size and mode of tcp beside tcp-unsealed, and beside ucx; medians over neighbouring blocks."""
    times_s = {(record["transport"], record["mode"], record["nbytes"]): record["time_s"] for record in records}
    lines = []
    for (name, mode, nbytes), samples_s in times_s.items():
        for other, what in ((UNSEALED, "tcp's seals"), ("ucx", "tcp beside ucx")):
            if name == "tcp" and (beside_s := times_s.get((other, mode, nbytes))):
                pairs = list(zip(samples_s, beside_s, strict=True))
                ratio = statistics.median(ours / theirs for ours, theirs in pairs)
                more_s = statistics.median(ours - theirs for ours, theirs in pairs)
                took = f"{ratio:.3f} of its time ({'+' if more_s >= 0 else '-'}{format_time(abs(more_s))})"
                rate = "" if what == "tcp's seals" else f", {1 / ratio:.2f} of its bandwidth"
                lines.append(f"{what}, {format_nbytes(nbytes)}, {mode}: {took}{rate}")
    return lines
