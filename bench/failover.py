"""Benchmark how long messages stall when the rail under them dies, and that none is lost and none comes twice.

Two ranks send each other a message every --every, through delegates with several rails. Half-way the rail in use is cut
from outside: `reset`, its connections are shut, as when a card's driver gives up; `silent`, its packets vanish and
nobody is told, as when a cable is out. `stall` is the longest time between two arrivals, less the usual.

  lanterne bench failover
  lanterne bench failover --bytes 16M --every 20ms --trials 10 --json failover.json
  lanterne bench failover --rails eth0,eth1                on one host: two interfaces

Exit code 1 if a message was lost, came twice or was damaged, or a stall lasted 1 s or longer.
"""

import statistics
import sys
import time

from ..errors import InputError
from . import report
from .units import format_time, parse_nbytes, parse_time_s

HOWS = ("reset", "silent")
BAR_S = 1.0


def add_arguments(parser):
    parser.add_argument("--bytes", default="1M", metavar="SIZE", help="of a message (default 1M)")
    parser.add_argument("--every", default="5ms", metavar="T", help="time between messages (default 5ms)")
    parser.add_argument("--messages", type=int, default=200, metavar="N", help="of a trial, each way (default 200)")
    parser.add_argument(
        "--rails", default="127.0.0.2,127.0.0.3", metavar="A,B,...", help="addresses or interfaces; the first is cut"
    )
    parser.add_argument("--how", default="reset,silent", metavar="A,B", help="default reset,silent")
    parser.add_argument("--trials", type=int, default=5, metavar="K", help="of each, in turn (default 5)")
    parser.add_argument("--json", metavar="FILE", help="write everything ('-' for standard output)")


def run(args):
    nbytes, every_s = parse_nbytes(args.bytes, "--bytes"), parse_time_s(args.every, "--every")
    rails, hows = tuple(args.rails.split(",")), args.how.split(",")
    for how in hows:
        if how not in HOWS:
            raise InputError(f"--how: got {how!r}, expected some of {', '.join(HOWS)}")
    if len(rails) < 2:
        raise InputError(f"--rails: got {args.rails}, expected at least two")
    if args.trials < 1 or args.messages < 4 or nbytes < 8:
        raise InputError("bench failover: expected at least 1 trial, 4 messages and 8 bytes")
    from ..transport.bootstrap import in_a_job

    if not in_a_job():
        from ..transport.launch import launch

        return launch([sys.executable, "-m", "lanterne", *sys.argv[1:]], 2, launcher="mpi")

    import lanterne

    trials = {how: [] for how in hows}
    with lanterne.init() as comm:
        if comm.world_size != 2:
            raise InputError(f"bench failover: got {comm.world_size} ranks, expected 2")
        for trial in range(args.trials):
            for how in hows:
                report.progress(f"{how} {trial + 1}/{args.trials}")
                trials[how].append(run_trial(comm, nbytes, every_s, args.messages, rails, how == "silent"))
    report.progress("")
    records = [record(how, nbytes, every_s, args.messages, rails, done) for how, done in trials.items()]
    if comm.rank == 0:
        document = report.envelope(results=records)
        if args.json:
            report.write_json(args.json, document)
        print_records(document, sys.stderr if args.json == "-" else sys.stdout)
    return int(any(result["wrong"] or max(result["stall_s"]) >= BAR_S for result in records))


def run_trial(comm, nbytes, every_s, count, rails, silently):
    """One trial: (longest gap over the usual one, in seconds, wrong messages) of both ranks, the same on both."""
    import numpy as np

    from ..kernels.delay import wait_until
    from ..pipeline.planes import make_plane
    from .rail_faults import cut

    peer, shape, dtype = 1 - comm.rank, (nbytes,), np.dtype(np.uint8)
    with make_plane("delegate", comm, rails=rails) as plane:
        receives = [plane.receive(shape, dtype, peer) for _ in range(count)]
        arrived_s, wrong = [], 0
        comm.barrier()
        begin_s = time.monotonic()
        for index in range(count):
            wait_until(begin_s + index * every_s)
            out = plane.lend(shape, dtype, peer)
            out[:] = index % 251
            out[:8] = np.frombuffer(np.int64(index).tobytes(), np.uint8)
            plane.send(out, peer)
            if comm.rank == 0 and index == count // 2:
                cut(plane.delegates.pids, plane.delegates.addresses[0], silently)
            got = receives[index].wait()
            arrived_s.append(time.monotonic())
            # Its number, and every byte: a message that is lost, repeated or mixed with another shows here.
            wrong += int(got[:8].view(np.int64)[0] != index or not (got[8:] == index % 251).all())
            plane.release(got)
        plane.finish()
        wrong += int(not plane.delegates.dropped)
    gaps_s = np.diff(arrived_s)
    mine = np.array([gaps_s.max() - np.median(gaps_s), wrong])
    every = np.empty((2, 2))
    comm.all_gather(mine, every.reshape(-1))
    return float(every[:, 0].max()), int(every[:, 1].sum())


def record(how, nbytes, every_s, count, rails, trials):
    """What the trials of one kind show."""
    return {
        "how": how,
        "nbytes": nbytes,
        "every_s": every_s,
        "messages": count,
        "rails": list(rails),
        "stall_s": [stall_s for stall_s, _ in trials],
        "wrong": sum(wrong for _, wrong in trials),
    }


def print_records(document, file):
    """The table of a failover document."""
    columns = [("rail", ""), ("size", "B"), ("messages", ""), ("trials", "")]
    columns += [("stall", "median"), ("most", ""), ("#wrong", "")]
    rows = [
        (
            result["how"],
            result["nbytes"],
            result["messages"],
            len(result["stall_s"]),
            format_time(statistics.median(result["stall_s"])),
            format_time(max(result["stall_s"])),
            result["wrong"],
        )
        for result in document["results"]
    ]
    report.print_table(columns, rows, file=file)
