"""SimGrid runs the messages of a file, rank by rank and round by round; imports nothing of lanterne.

    apt-get install python3-simgrid
    /usr/bin/python3 judge.py messages.json          prints {"finish_s": [...]}, when each rank is done

The file, which compare.py writes: `links`, bytes per s of each; `routes`, [src, dst, [link, ...], start-up s] of ranks
that talk; `ranks`, of each its `start_s` and `rounds`, [[[message, bytes to send or -1], ...], s to add in the end].
The network model is CM02 without factors or cross-traffic: flows of equal latency share links max-min fairly.
"""

import json
import sys
from typing import Any

from simgrid import Actor, Engine, Link, LinkInRoute, Mailbox, NetZone, this_actor


def main(path: str) -> None:
    """Run the file and print what came out."""
    with open(path) as file:
        told = json.load(file)
    engine = Engine(["judge", "--log=root.threshold:error", "--cfg=network/model:CM02", "--cfg=network/crosstraffic:0",
                     "--cfg=network/TCP-gamma:0", "--cfg=network/weight-S:0", "--cfg=network/bandwidth-factor:1",
                     "--cfg=network/latency-factor:1", "--cfg=surf/precision:1e-12"])  # fmt: skip
    zone = NetZone.create_full_zone("all")
    hosts = [zone.create_host(f"rank-{rank}", 1e9).seal() for rank in range(len(told["ranks"]))]
    links = [zone.create_link(f"link-{number}", rate).seal() for number, rate in enumerate(told["links"])]
    for src, dst, numbers, start_s in told["routes"]:
        # A link of the pair alone, that holds nobody up, has its start-up time.
        start = zone.create_link(f"start-{src}-{dst}", 1e18).set_latency(start_s)
        start.set_sharing_policy(Link.SharingPolicy.FATPIPE, None)
        route = [LinkInRoute(start.seal()), *(LinkInRoute(links[number]) for number in numbers)]
        zone.add_route(hosts[src].netpoint, hosts[dst].netpoint, None, None, route, False)
    zone.seal()
    finish_s = [0.0] * len(hosts)
    for rank, plan in enumerate(told["ranks"]):
        Actor.create(f"rank-{rank}", hosts[rank], run_rank, rank, plan, finish_s)
    engine.run()
    print(json.dumps({"finish_s": finish_s}))


def run_rank(rank: int, plan: dict[str, Any], finish_s: list[float]) -> None:
    """One rank: an actor, whose messages of a round are under way at once."""
    if plan["start_s"]:
        this_actor.sleep_for(plan["start_s"])
    for messages, adding_s in plan["rounds"]:
        pending: list[tuple[Any, Any]] = []
        for number, nbytes in messages:
            mailbox = Mailbox.by_name(str(number))
            if nbytes < 0:
                comm, handle = mailbox.get_async()
                pending.append((comm, handle))
            else:
                pending.append((mailbox.put_async(number, round(nbytes)), None))
        for comm, _ in pending:
            comm.wait()
        if adding_s:
            this_actor.sleep_for(adding_s)
    finish_s[rank] = Engine.clock


if __name__ == "__main__":
    main(sys.argv[1])
