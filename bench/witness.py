"""Hold the store of a job on a machine that is none of its hosts: whoever reaches it goes on, whichever host dies.

  lanterne witness --bind 10.0.0.9                                  # here
  LANTERNE_WITNESS=10.0.0.9:29401 torchrun ... train.py             # on every host of the job, or srun

The store is where ranks learn who lives. Without a witness rank 0 starts it, and the job ends with that host. With one,
any host may die or be cut off: the ranks that reach the witness shrink and go on, those that do not end and say so.
The store is started again where it dies, and after each job. LANTERNE_TOKEN, a secret, is the same here and on all
hosts. Ends by Ctrl-C.
"""

import argparse
import os
import signal
import sys

from lanterne.errors import InputError
from lanterne.transport.job.bootstrap import WITNESS, address_of
from lanterne.transport.store.process import StoreProcess

PORT = 29401


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--bind", required=True, metavar="ADDRESS", help="address or interface that all hosts reach")
    parser.add_argument("--port", type=int, default=PORT, metavar="P", help=f"(default {PORT})")


def run(args: argparse.Namespace) -> int:
    """Hold a store until a signal comes."""
    if not 0 <= args.port < 1 << 16:
        raise InputError(f"--port: got {args.port}, expected 0 to 65535")
    token = os.environ.get("LANTERNE_TOKEN")
    if token is None:
        raise InputError(
            "LANTERNE_TOKEN: not set, expected a secret of 16 characters or more, the same here and on all ranks"
        )
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    with StoreProcess(token, address_of(args.bind), args.port, until="members") as store:
        host, port = store.address
        print(f"{WITNESS}={host}:{port}", flush=True)
        while True:
            if code := store.wait():  # 0: its job is over, or has not begun for long
                print(f"# the store has ended with code {code}, and is started again", flush=True)
            store.renew()
