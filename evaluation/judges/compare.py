"""Judge our simulator of flows by SimGrid: the same schedules on the same topologies, the times side by side.

    apt-get install python3-simgrid
    ./run evaluate judges.compare --topology dgx-4x4,dgx-one-nic-4x4 --nbytes 64MiB

SimGrid runs under the system's Python (--python), in a process of its own, by its model CM02 without cross-traffic.
Where it differs from ours by more than 5 %, flows of different latency share a link: CM02 gives those of a shorter one
more of it, ours gives all alike. Exit code 1 where any differs by more than --check allows.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lanterne.bench.output.report import envelope, print_table, write_json
from lanterne.bench.output.units import format_nbytes, format_time, parse_nbytes
from lanterne.collectives.algorithms.catalogue import find_algorithm, make_schedule
from lanterne.collectives.auto.predict import chunk_count, nodes_of_links
from lanterne.collectives.schedule.check_schedule import check
from lanterne.collectives.schedule.cost import chunk_nbytes, late_start, price
from lanterne.collectives.schedule.passes import waiting_part
from lanterne.collectives.topology.flows import messages_of, simulate_flows, turns_of
from lanterne.collectives.topology.presets import find_topology
from lanterne.errors import InputError, Unavailable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lanterne.collectives.schedule.ir import CollectiveSchedule
    from lanterne.collectives.topology.topology import Topology

ALGORITHMS = "ring,hier_ring,hier_bruck,hier_late_join,hier_late_chain,late_join"
SYSTEM_PYTHON = "/usr/bin/python3"
LIMIT_S = 600.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topology", default="dgx-4x4", metavar="FILE|PRESET,...", help="default: dgx-4x4")
    parser.add_argument("--nbytes", default="64MiB", metavar="SIZE", help="of a buffer (default: 64MiB)")
    parser.add_argument("--algorithm", default=ALGORITHMS, metavar="A,A,...", help=f"default: {ALGORITHMS}")
    parser.add_argument("--python", default=SYSTEM_PYTHON, metavar="FILE", help=f"with SimGrid ({SYSTEM_PYTHON})")
    parser.add_argument("--check", type=float, metavar="RATIO", help="exit 1 where the times differ by more, as 0.05")
    parser.add_argument("--json", metavar="FILE", help="write all numbers")
    args = parser.parse_args()
    try:
        nbytes = parse_nbytes(args.nbytes, "--nbytes")
        results = [
            judged(find_topology(name), algorithm, nbytes, args.python)
            for name in args.topology.split(",")
            for algorithm in args.algorithm.split(",")
        ]
    except (InputError, Unavailable) as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 3
    if args.json:
        write_json(args.json, envelope(results=results))
    columns = [("topology", ""), ("algorithm", ""), ("size", ""), ("late rank", ""), ("model", ""), ("flows", ""),
               ("SimGrid", ""), ("flows / SimGrid", "")]  # fmt: skip
    rows = [
        [
            row["topology"],
            row["algorithm"],
            format_nbytes(row["nbytes"]),
            "-" if row["late_rank"] is None else row["late_rank"],
            *(format_time(row[f"{judge}_s"]) for judge in ("model", "flows", "simgrid")),
            f"{row['ratio']:.4f}",
        ]
        for row in results
    ]
    print_table(columns, rows, left=(0, 1))
    return int(args.check is not None and any(abs(row["ratio"] - 1) > args.check for row in results))


def judged(topology: Topology, algorithm: str, nbytes: int, python: str) -> dict[str, Any]:
    """A record: what the schedule of `algorithm` takes by the model, by our flows and by SimGrid.

    With a late rank from its arrival, so late that all work without it is done.
    """
    line, size = find_algorithm("all_reduce", algorithm), topology.world_size
    late = size - 1 if line.late else None
    chunks = chunk_count(line, size, nbytes, topology)
    made = make_schedule("all_reduce", algorithm, size, chunks, late_rank=late, nodes=nodes_of_links(topology))
    schedule = check(made).schedule
    far_s = 10 * price(schedule, nbytes, topology).makespan_s if line.late else 0.0
    start_s = late_start(size, late, far_s)
    priced = waiting_part(schedule, late) if line.late else schedule
    found_s = {
        "model_s": price(priced, nbytes, topology).makespan_s,
        "flows_s": float(simulate_flows(schedule, nbytes, topology, start_s).max()) - far_s,
        "simgrid_s": by_simgrid(schedule, nbytes, topology, start_s, python) - far_s,
    }
    about = {"topology": topology.name, "algorithm": algorithm, "nbytes": nbytes, "late_rank": late}
    return about | {"num_chunks": schedule.num_chunks} | found_s | {"ratio": found_s["flows_s"] / found_s["simgrid_s"]}


def by_simgrid(
    schedule: CollectiveSchedule, nbytes: float, topology: Topology, start_s: NDArray[np.float64], python: str
) -> float:
    """When the last rank is done, s, by SimGrid.

    Raises:
        Unavailable: it cannot be run.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "messages.json"
        path.write_text(json.dumps(document(schedule, nbytes, topology, start_s)))
        script = str(Path(__file__).with_name("judge.py"))
        try:
            result = subprocess.run(
                [python, script, str(path)], check=False, capture_output=True, text=True, timeout=LIMIT_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"SimGrid: {error}") from None
    if result.returncode:
        reason = (result.stderr.strip() or str(result.returncode)).splitlines()[-1]
        raise Unavailable(f"SimGrid under {python}: {reason}; install it with: apt-get install python3-simgrid")
    return float(max(json.loads(result.stdout.splitlines()[-1])["finish_s"]))


def document(
    schedule: CollectiveSchedule, nbytes: float, topology: Topology, start_s: NDArray[np.float64]
) -> dict[str, Any]:
    """What judge.py reads."""
    unit = chunk_nbytes(schedule, nbytes)
    messages = messages_of(schedule, unit, topology)
    turns = turns_of(messages, schedule.world_size)
    end = len(messages.capacity) - 1
    routes: dict[tuple[int, int], tuple[list[int], float]] = {}
    for number in np.unique(messages.src * schedule.world_size + messages.dst, return_index=True)[1].tolist():
        pair = int(messages.src[number]), int(messages.dst[number])
        links = [link for link in messages.links[number].tolist() if link != end]
        routes[pair] = links, float(messages.start_s[number])
    ranks: list[dict[str, Any]] = [{"start_s": float(each), "rounds": []} for each in start_s]
    for turn, rank in enumerate(turns.rank.tolist()):
        told = [
            [number, float(messages.nbytes[number]) if messages.src[number] == rank else -1]
            for number in turns.message[turns.starts[turn] : turns.starts[turn + 1]].tolist()
        ]
        ranks[rank]["rounds"].append([told, topology.gamma_s_per_byte * unit * float(turns.added[turn])])
    return {
        "links": messages.capacity[:end].tolist(),
        "routes": [[*pair, *rest] for pair, rest in routes.items()],
        "ranks": ranks,
    }


if __name__ == "__main__":
    raise SystemExit(main())
