"""Predict what 8 GPUs on NVLink, and 2 x 8 with InfiniBand, will show: a late rank (StragglAR, figure 5) and fail-over.

./run evaluate gpu.predictions --json evaluation/results/gpu-predictions.json > evaluation/results/gpu-predictions.md

Nothing is measured. All-reduces are those that the executor queues, as captured graphs, charged as in gpu.charges; the
late rank is known before the call. NVLink: 360 GB/s each way of a GPU, 0.8 of what an H100 is said to have; InfiniBand:
a NIC of 50 GB/s for each GPU, 14 us a hop (NCCL's latency of its ring over a network). The delays are the average of
StragglAR's DGX H100 (4.48 ms) and one that hides all that needs no late rank. Fail-over is of a pipeline's messages by
delegates with two NICs a GPU: what a cut NIC adds to an iteration.
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from evaluation.gpu.charges import Charges, queued, time_s
from evaluation.papers.stragglar.gpu_servers import MACHINES
from lanterne.bench.output import report
from lanterne.bench.output.options import add_json
from lanterne.bench.output.units import format_nbytes, format_time
from lanterne.collectives.auto.tuning import GPUS
from lanterne.collectives.topology.presets import dgx
from lanterne.transport.rails.paths import QUIET_S
from lanterne.transport.rails.rail import MUTE_MS

MIB = 1 << 20
SIZES = (MIB, 16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB)
MACHINE = MACHINES[0]
ONE = Charges()
TWO = Charges(node_ranks=8)
ALGORITHMS = {
    "8 x H100, NVLink": ("ring", "allpairs", "rhd", "stragglar", "late_join"),
    "2 x 8 H100, InfiniBand": ("ring", "hier_ring", "late_join", "hier_late_join"),
}
# Between two hosts by TCP, five cuts each: results/cpu-2-cores.md.
MEASURED_RESET_S, MEASURED_SILENT_S = 3.3e-3, 0.604
# What NCCL's plug-in for InfiniBand is set to: a retry takes 4.096 us * 2 ** NCCL_IB_TIMEOUT at least.
NCCL_IB_TIMEOUT, NCCL_IB_RETRY_COUNT = 20, 7
MESSAGE_NBYTES, WINDOW = 64 * MIB, 4


def late_rows(quick: bool = False) -> list[dict[str, Any]]:
    """Return, by machine and size, the time from the last rank's call to the end of each algorithm."""
    rows = []
    for machine, names in ALGORITHMS.items():
        ranks, charges, links = (8, ONE, GPUS) if machine.startswith("8") else (16, TWO, dgx(2, 8))
        for nbytes in SIZES[:2] if quick else SIZES:
            items = {name: queued(ranks, name, nbytes, links) for name in names}
            native_s = charges.native_s(ranks, nbytes) + charges.launch_s
            hidden_s = 1e-3 + 10 * native_s
            for kind, delay_s in (("none", 0.0), ("average", MACHINE.average_s), ("ideal", hidden_s)):
                starts_s = [0.0] * (ranks - 1) + [delay_s]
                exposed_s = {
                    name: time_s(each, charges, captured=True, starts_s=starts_s) - delay_s
                    for name, each in items.items()
                }
                best = min(exposed_s, key=exposed_s.__getitem__)
                rows.append(
                    {
                        "machine": machine,
                        "ranks": ranks,
                        "nbytes": nbytes,
                        "delay": kind,
                        "delay_s": delay_s,
                        "native_s": native_s,
                        "exposed_s": exposed_s,
                        "best": best,
                        "gain_over_native": native_s / exposed_s[best],
                    }
                )
    return rows


def failover_rows() -> list[dict[str, Any]]:
    """Return what a cut NIC adds to an iteration of a pipeline on 2 x 8, by how it is cut."""
    again_s = WINDOW * MESSAGE_NBYTES / TWO.nic_bytes_per_s
    retries_s = NCCL_IB_RETRY_COUNT * 4.096e-6 * 2**NCCL_IB_TIMEOUT
    cuts = {"reset": (MEASURED_RESET_S, "seen at once"), "silent": (QUIET_S + MUTE_MS / 1e3, "asked, and given up")}
    rows = [
        {"path": "delegates, two NICs", "cut": cut, "seen_s": seen_s, "why": why, "stall_s": seen_s + again_s}
        for cut, (seen_s, why) in cuts.items()
    ]
    alone = {"path": "NCCL alone", "cut": "silent", "seen_s": retries_s, "why": "its retries, then an error"}
    return [*rows, {**alone, "stall_s": None}]


def show(document: dict[str, Any], stream: Any) -> None:
    """Print the predictions as a page."""
    lines = [
        "# What GPUs are predicted to show",
        "",
        f"Of {document['date']}, before anything was measured between GPUs; by `./run evaluate gpu.predictions`, whose",
        "help has the model. Figures of time are from the last rank's call to the last end, of captured graphs.",
        "",
        f"Constants: {', '.join(f'{name} {value:g}' for name, value in document['charges'].items())}.",
    ]
    for machine, names in ALGORITHMS.items():
        lines += ["", f"## {machine}, one rank late (StragglAR, figure 5)", ""]
        heads = ["bytes", "late by", *(f"{name}, us" for name in names), "native, us", "native / best"]
        lines += [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        for row in (row for row in document["late"] if row["machine"] == machine):
            times = [f"{1e6 * row['exposed_s'][name]:.0f}" for name in names]
            delay = f"{row['delay']}, {format_time(row['delay_s'])}" if row["delay_s"] else "none"
            gain = f"{row['gain_over_native']:.2f} ({row['best']})"
            cells = [format_nbytes(row["nbytes"]), delay, *times, f"{1e6 * row['native_s']:.0f}", gain]
            lines.append(f"| {' | '.join(cells)} |")
    window = f"{WINDOW} messages of {format_nbytes(MESSAGE_NBYTES)}"
    lines += ["", "## 2 x 8, a NIC that is cut", "", f"{window} are under way, and go again by the other NIC.", ""]
    lines += ["| path | cut | seen after | how | the iteration takes longer by |", "|---|---|---|---|---|"]
    for row in document["failover"]:
        stall = "it ends" if row["stall_s"] is None else format_time(row["stall_s"])
        lines.append(f"| {row['path']} | {row['cut']} | {format_time(row['seen_s'])} | {row['why']} | {stall} |")
    told = f"{format_time(MEASURED_RESET_S)} after a reset and {format_time(MEASURED_SILENT_S)} after silence"
    lines += ["", f"Between two CPU ranks by TCP it was {told} ([cpu-2-cores.md](cpu-2-cores.md)).", ""]
    stream.write("\n".join(lines))


def main(argv: Sequence[str] | None = None) -> int:
    """Predict and print."""
    parser = argparse.ArgumentParser(
        prog="./run evaluate gpu.predictions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--date", default="2026-11-29", metavar="DAY", help="of the page (default 2026-11-29)")
    add_json(parser, "every row")
    args = parser.parse_args(argv)
    found = {"date": args.date, "charges": TWO._asdict(), "late": late_rows(), "failover": failover_rows()}
    # A result that is kept must not depend on where it was made.
    words = ["evaluate", "gpu.predictions", *(sys.argv[1:] if argv is None else argv)]
    report.tell(args.json, report.envelope(**found) | {"argv": words}, show)
    return 0


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        sys.exit(main())
