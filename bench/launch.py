"""Start a job of N ranks on this host, as torchrun does; ranks that fail are started again.

  lanterne launch -n 4 -- python examples/go_on.py
  lanterne launch -n 4 --restarts 3 -- python examples/go_on.py     # a rank that fails is started again

The ranks also have torchrun's variables (RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and so on), so a torch.distributed program
of any backend runs as it is. Other programs call `lanterne.init()`. A program that goes on after a death calls
`comm.shrink()` then, and between its steps `comm.grow()`, which takes in the processes that wait: docs/going-on.md. The
job ends if its store is killed, unless LANTERNE_STORE names a Redis. The exit code is 0 if every rank that was there at
the end returned 0, else that of the first that failed. A rank that ends with 2, which is bad input, is not started
again, and 2 is the job's exit code, even if other ranks go on.
"""

import argparse
import os

from lanterne.bench.output.units import whole
from lanterne.errors import InputError
from lanterne.transport.job.launch import MAX_RESTARTS, MAX_WORLD_SIZE, launch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("-n", "--ranks", type=whole(1), required=True, metavar="N", help="start N ranks here")
    parser.add_argument(
        "--transport", choices=("tcp", "ucx"), help="of the ranks (default: LANTERNE_TRANSPORT, else tcp)"
    )
    parser.add_argument(
        "--restarts",
        type=whole(0),
        default=0,
        metavar="R",
        help="so often each rank is started again when it fails, but for bad input (exit code 2)",
    )
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="the program, after --")


def run(args: argparse.Namespace) -> int:
    """Run the job; its exit code."""
    if args.ranks > MAX_WORLD_SIZE or args.restarts > MAX_RESTARTS:
        most = f"{MAX_WORLD_SIZE} ranks, {MAX_RESTARTS} restarts"
        raise InputError(f"launch: got {args.ranks} ranks, {args.restarts} restarts, expected at most {most}")
    env = {"LANTERNE_TRANSPORT": args.transport or os.environ.get("LANTERNE_TRANSPORT") or "tcp"}
    return launch(args.command, args.ranks, "direct", env=env, restarts=args.restarts)
