"""The state of training handed on between ranks: who takes a place gets it from the one who had it, all at once.

A job on many ranks moves as fast as one rank's part crosses a link, whatever the number of ranks: nothing is collected,
and nothing touches a disk.

Paper: Wu et al. (GREYHOUND), section 5.2, strategy S3, steps 2 and 3.
"""

from typing import TypeAlias

import numpy as np

from lanterne.collectives.communicator import Communicator
from lanterne.collectives.message_lanes import Lane
from lanterne.pipeline.execute.stage import StageArray
from lanterne.pipeline.train.data_parallel import Copies
from lanterne.pipeline.train.rank_layout import Layout

# The optimizer's steps, and by stage the parameters and the averages that a rank keeps.
Held: TypeAlias = tuple[int, dict[int, list[StageArray]]]


def hold(copies: Copies) -> Held:
    """(steps, {stage: [parameters, mean, square]}) of this rank; `mean` and `square` are of its part alone.

    Where copies share the averages (ZeRO-1), these are shorter than the parameters.
    """
    held: dict[int, list[StageArray]] = {}
    steps = 0
    for number, stage in copies.stages.items():
        optimizer, own = stage.optimizer, copies.part(number)
        kept = (optimizer.mean, optimizer.square)
        averages = [np.zeros_like(stage.parameters[own]) if x is None else x for x in kept]
        held[number] = [stage.parameters, *averages]
        steps = optimizer.steps
    return steps, held


def moves(before: Layout, after: Layout) -> list[tuple[int, int]]:
    """(source, destination) of every seat of two Layouts of one shape whose rank changes."""
    pairs = zip(np.array(before.ranks).flat, np.array(after.ranks).flat, strict=True)
    return [(int(source), int(destination)) for source, destination in pairs if source != destination]


def move_state(comm: Communicator, before: Layout, after: Layout, held: Held, copies: Copies) -> None:
    """Bring what `hold` gave under Layout `before` to where `after` wants it, into the stages of `copies`.

    Every rank of `comm` calls it. A seat whose rank stays keeps what it has.

    Cost: each rank sends and receives at most one seat: (3 x its parameters) numbers.
    """
    steps, mine = held
    sources = {destination: source for source, destination in moves(before, after)}
    targets = {source: destination for source, destination in moves(before, after)}
    receives: dict[int, list[StageArray]] = {}
    for number, stage in sorted(copies.stages.items()):
        own = stage.parameters[copies.part(number)]
        mean, square = np.zeros_like(own), np.zeros_like(own)
        stage.optimizer.mean, stage.optimizer.square = mean, square
        receives[number] = [stage.parameters, mean, square]
        stage.optimizer.steps = steps
    requests = []
    if comm.rank in sources:
        requests += [
            comm.start_recv(array, sources[comm.rank], tag=Lane.HANDOVER)
            for number in receives
            for array in receives[number]
        ]
        requests += [
            comm.start_send(array, targets[comm.rank], tag=Lane.HANDOVER)
            for number in sorted(mine)
            for array in mine[number]
        ]
    else:
        for number, arrays in receives.items():
            for array, value in zip(arrays, mine[number], strict=True):
                array[...] = value
    for request in requests:
        request.wait()
