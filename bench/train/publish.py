"""The page and the metrics of `lanterne pipeline train --listen ADDR`, which rank 0 publishes."""

from __future__ import annotations

import argparse
import logging
import sys
from typing import TYPE_CHECKING

from lanterne.collectives.communicator import Communicator, core_of
from lanterne.errors import InputError
from lanterne.failslow.mitigate.training_status import TrainingStatus
from lanterne.failslow.operate.publisher import Publisher
from lanterne.failslow.operate.status_server import parse_address

if TYPE_CHECKING:
    from lanterne.failslow.mitigate.controller import Controller
    from lanterne.pipeline.train.trainer import Iteration


log: logging.Logger = logging.getLogger(__name__)


def check_publish(args: argparse.Namespace) -> None:
    """Raise InputError if --listen is no address."""
    if args.listen is not None:
        parse_address(args.listen, "--listen")


class TrainingPublisher:
    """Publishes on the rank that is rank 0 now; without --listen it does nothing."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._listen: str | None = args.listen
        self._comm: Communicator | None = None
        self._publisher: Publisher | None = None
        self._is_told = False

    def follow(self, comm: Communicator, controller: Controller | None, *, must: bool = False) -> None:
        """Publish from now on for `comm`, if it is another; unless it `must` be now, a taken port is tried again later.

        The rank that was rank 0 before may hold the port until its iteration has ended too.
        """
        if comm is self._comm:
            return
        self.close()
        if self._listen and comm.rank == 0:
            try:
                self._publisher = Publisher(self._listen)
            except InputError as error:
                if must:
                    raise
                if not self._is_told:
                    log.warning("%s: tried again after each iteration", error)
                self._is_told = True
                return
            arrivals, program = core_of(comm).late.arrivals, ["lanterne", *sys.argv[1:]]
            self._status = TrainingStatus(comm.world_size, program, controller, lambda: arrivals.begun_early)
            self._publisher.offer(self._status.document)
            if (server := self._publisher.server) is not None:
                token = f", token {server.token}" if server.token else ""
                print(f"# page at {server.url}, metrics at {server.url}metrics{token}", file=sys.stderr, flush=True)
        self._comm, self._is_told = comm, False

    def ended(self, done: Iteration) -> None:
        """Record that an iteration has ended on this rank."""
        if self._publisher is not None:
            self._status.add(done.number, done.seconds)

    def close(self) -> None:
        """Publish how it has ended, and stop."""
        if self._publisher is not None:
            self._publisher.publish(self._status.document(ended=True))
            self._publisher.close()
        self._comm = self._publisher = None
