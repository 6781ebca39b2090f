"""The page and the metrics of `lanterne pipeline train --listen ADDR`, which rank 0 publishes."""

from __future__ import annotations

import argparse
import logging
import sys
from typing import TYPE_CHECKING

from lanterne.bench.output.options import add_listen
from lanterne.collectives.communicator import Communicator, core_of
from lanterne.errors import InputError
from lanterne.failslow.mitigate.training_status import TrainingStatus
from lanterne.failslow.operate.publisher import Publisher
from lanterne.failslow.operate.status_server import parse_address

if TYPE_CHECKING:
    from lanterne.failslow.mitigate.controller import Controller
    from lanterne.pipeline.train.trainer import Iteration


log: logging.Logger = logging.getLogger(__name__)


def add_publish_arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    add_listen(parser)


def check_publish(args: argparse.Namespace) -> None:
    """Raise InputError if --listen is no address."""
    if args.listen is not None:
        parse_address(args.listen, "--listen")


class TrainingPublisher:
    """Publishes on rank 0, when somebody asks; on others, and without the options, it does nothing."""

    def __init__(self, args: argparse.Namespace, comm: Communicator, controller: Controller | None = None) -> None:
        self._publisher: Publisher | None = None
        if comm.rank or not args.listen:
            return
        self._publisher = Publisher(args.listen)
        arrivals = core_of(comm).late.arrivals
        program = ["lanterne", *sys.argv[1:]]
        self._status = TrainingStatus(comm.world_size, program, controller, lambda: arrivals.begun_early)
        self._publisher.offer(self._status.document)
        if (server := self._publisher.server) is not None:
            token = f", token {server.token}" if server.token else ""
            print(f"# page at {server.url}, metrics at {server.url}metrics{token}", file=sys.stderr, flush=True)

    def ended(self, done: Iteration) -> None:
        """An iteration has ended on this rank."""
        if self._publisher is not None:
            self._status.add(done.number, done.seconds)

    def close(self) -> None:
        """Publish how it has ended, and stop."""
        if self._publisher is not None:
            self._publisher.publish(self._status.document(ended=True))
            self._publisher.close()


class RelayedPublisher:
    """A TrainingPublisher of whoever is rank 0 by then, where ranks come and go."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._comm: Communicator | None = None
        self._publisher: TrainingPublisher | None = None
        self._is_told = False

    def follow(self, comm: Communicator, controller: Controller | None, *, must: bool = False) -> None:
        """Publish from now on for `comm`, if it is another; unless it `must` be now, a taken port is tried again later.

        Who was rank 0 before may hold it still, until its iteration has ended too.
        """
        if comm is self._comm:
            return
        self.close()
        try:
            self._publisher = TrainingPublisher(self._args, comm, controller)
        except InputError as error:
            if must:
                raise
            if not self._is_told:
                log.warning("%s: tried again after each iteration", error)
            self._is_told = True
            return
        self._comm, self._is_told = comm, False

    def ended(self, done: Iteration) -> None:
        """See TrainingPublisher.ended."""
        if self._publisher is not None:
            self._publisher.ended(done)

    def close(self) -> None:
        """See TrainingPublisher.close."""
        if self._publisher is not None:
            self._publisher.close()
        self._comm = self._publisher = None
