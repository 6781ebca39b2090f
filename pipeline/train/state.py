"""The state of training, collected from ranks that each have a part of it, and put back."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lanterne.collectives.communicator import Communicator
from lanterne.collectives.message_lanes import Lane
from lanterne.errors import InputError
from lanterne.kernels.arrays import is_device_array
from lanterne.pipeline.execute.stage import StageArray
from lanterne.pipeline.model.stage_layers import LayerStage
from lanterne.pipeline.train.checkpoint import VECTORS, TrainingState
from lanterne.pipeline.train.data_parallel import Copies
from lanterne.pipeline.train.rank_layout import Layout


def gather_state(comm: Communicator, copies: Copies, copy: int, iteration: int) -> TrainingState:
    """Return the TrainingState on every rank of `comm`; `copies` and `copy` are this rank's."""
    stage = next(iter(copies.stages.values()))
    places, values = seat_places(copies), seat_values(copies)
    if copy and not copies.sharded:
        # The first copy has the same.
        places, values = places[:0], values[:0]
    return TrainingState(iteration, stage.optimizer.steps, *collect(comm, places, values))


def collect(comm: Communicator, places: NDArray[np.int64], values: StageArray) -> StageArray:
    """Return all VECTORS of the whole model, (3, num_whole), on every rank.

    Args:
        places: (k,) of `values` in all vectors, one behind the other; each place is given by one rank.
        values: (k,) of the same dtype on all ranks.

    Cost: the state crosses the link of rank 0 once, and is broadcast.
    """
    counts = np.empty((comm.world_size, 2), np.int64)
    comm.all_gather(np.array([len(places), places.max(initial=-1) + 1]), counts)
    whole = np.zeros(int(counts[:, 1].max()), values.dtype)
    if comm.rank:
        if len(places):
            comm.send(places, 0, tag=Lane.STATE)
            comm.send(values, 0, tag=Lane.STATE)
    else:
        whole[places] = values
        for peer in np.flatnonzero(counts[1:, 0]) + 1:
            places, values = np.empty(counts[peer, 0], np.int64), np.empty(counts[peer, 0], whole.dtype)
            comm.recv(places, int(peer), tag=Lane.STATE)
            comm.recv(values, int(peer), tag=Lane.STATE)
            whole[places] = values
    comm.broadcast(whole)
    return whole.reshape(len(VECTORS), -1)


def _on_host(array: Any) -> Any:
    return array.get() if array is not None and is_device_array(array) else array


def _averages(stage: LayerStage) -> tuple[StageArray | None, StageArray | None]:
    return stage.optimizer.mean, stage.optimizer.square


def seat_units(layout: Layout, rank: int, *, sharded: bool) -> NDArray[np.uint8]:
    """(units,) 1 for the unit of the state that the seat of `rank` has.

    A unit is what one place and part has, alike in all copies; if they are `sharded`, what one copy of it answers for.
    """
    copies, places, parts = layout.shape
    copy, place, part = layout.where(rank)
    seats = places * parts
    units = np.zeros(seats * (copies if sharded else 1), np.uint8)
    units[(copy * seats if sharded else 0) + place * parts + part] = 1
    return units


def held_alone(layout: Layout, *, sharded: bool) -> bool:
    """Whether a rank has some of the state that no other has, so that its death would lose it."""
    units = sum(seat_units(layout, rank, sharded=sharded).astype(int) for rank in range(np.prod(layout.shape)))
    return bool(np.any(np.equal(units, 1)))


def runs_of(places: NDArray[np.int64]) -> NDArray[np.int64]:
    """(runs, 2) first and length of each run of `places` that follow each other: few, where those are many."""
    starts = np.flatnonzero(np.diff(places, prepend=-2) != 1)
    return np.stack([places[starts], np.diff(starts, append=len(places))], axis=1)


def places_of(runs: NDArray[np.int64]) -> NDArray[np.int64]:
    """The places that `runs_of` has made runs of."""
    firsts, lengths = runs.T
    return np.arange(lengths.sum()) + np.repeat(firsts - (lengths.cumsum() - lengths), lengths)


def seat_places(copies: Copies) -> NDArray[np.int64]:
    """Where the numbers of `seat_values` are in all VECTORS of the whole model, one behind the other."""
    found = []
    for number, stage in copies.stages.items():
        whole, own = sum(layer.num_whole for layer in stage.model.layers), stage.places()[copies.part(number)]
        found += [own, whole + own, 2 * whole + own]
    return np.concatenate(found)


def seat_counts(copies: Copies) -> NDArray[np.int64]:
    """(stages,) how many parameters of each of its stages this rank answers for: all, or if sharded its part."""
    counts = [len(stage.places()[copies.part(number)]) for number, stage in copies.stages.items()]
    return np.array(counts, np.int64)


def seat_arrays(copies: Copies) -> list[StageArray]:
    """Of each stage the parameters that this rank answers for, and their averages, as they lie if that is on the host.

    Zeros before the first step.
    """
    found: list[StageArray] = []
    for (number, stage), count in zip(copies.stages.items(), seat_counts(copies), strict=True):
        averages = [np.zeros(count, stage.dtype) if x is None else _on_host(x)[:count] for x in _averages(stage)]
        found += [_on_host(stage.parameters[copies.part(number)])[:count], *averages]
    return found


def seat_values(copies: Copies, out: StageArray | None = None) -> StageArray:
    """(k,) what `seat_arrays` are, one behind the other."""
    return np.concatenate(seat_arrays(copies), out=out)


def seat_gradients(copies: Copies) -> list[StageArray]:
    """Of each stage the gradients of the parameters that this rank answers for, as `seat_arrays`."""
    counts = zip(copies.stages.items(), seat_counts(copies), strict=True)
    return [_on_host(stage.gradients[copies.part(number)])[:count] for (number, stage), count in counts]


def put_state(state: TrainingState, copies: Copies) -> None:
    """Put what this rank needs of `state` into its stages.

    Raises:
        InputError: the state is of another model.
    """
    model = next(iter(copies.stages.values())).model
    expected = sum(layer.num_whole for layer in model.layers)
    for name in VECTORS:
        if getattr(state, name).shape != (expected,):
            raise InputError(f"state: got {name} of shape {getattr(state, name).shape}, expected ({expected},)")
    for number, stage in copies.stages.items():
        places, part = stage.places(), copies.part(number)
        stage.parameters[: len(places)] = stage.xp.asarray(state.parameters[places])
        own = places[part]
        for name in VECTORS[1:]:
            average = stage.xp.zeros_like(stage.parameters[part])
            average[: len(own)] = stage.xp.asarray(getattr(state, name)[own])
            setattr(stage.optimizer, name, average)
        stage.optimizer.steps = state.steps
