"""State of training: parts of it held by ranks, and the one operation that moves them between ranks.

Places number all that training needs to go on: the parameters of the whole model, then the averages of Adam for each,
`mean` and `square`. They do not depend on how the model was cut, copied and planned, so a state goes on in any layout.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lanterne.collectives.communicator import Communicator, gather_bytes
from lanterne.collectives.message_lanes import Lane
from lanterne.errors import InputError
from lanterne.kernels.arrays import is_device_array
from lanterne.pipeline.execute.stage import StageArray
from lanterne.pipeline.model.stage_layers import LayerStage
from lanterne.pipeline.plan.costs import Ints
from lanterne.pipeline.train.data_parallel import Copies

VECTORS = ("parameters", "mean", "square")


@dataclass(eq=False)
class TrainingState:
    """State of training on the host, or a part of it.

    Attributes:
        iteration: iterations done, which is also where the data are.
        steps: steps of the optimizer.
        size: places of the whole state.
        runs: (runs, 2) first and length of each run of its places.
        values: (places,) values of those.
    """

    iteration: int
    steps: int
    size: int
    runs: Ints
    values: NDArray[Any]

    @classmethod
    def of_vectors(cls, iteration: int, steps: int, *vectors: NDArray[Any]) -> "TrainingState":
        """Return the whole state of these VECTORS, (num_whole,) each."""
        values = np.concatenate(vectors)
        return cls(iteration, steps, len(values), np.array([[0, len(values)]]), values)

    @property
    def vectors(self) -> dict[str, NDArray[Any]]:
        """The VECTORS of a whole state by name."""
        return dict(zip(VECTORS, self.values.reshape(len(VECTORS), -1), strict=True))

    def copy(self) -> "TrainingState":
        """Return the same state with values of its own."""
        return TrainingState(self.iteration, self.steps, self.size, self.runs, self.values.copy())

    def spans(self, runs: Ints) -> list[slice]:
        """Return where `runs` are in `values`, in few slices; each of `runs` lies within one of its own."""
        order = np.argsort(self.runs[:, 0], kind="stable")
        starts = np.cumsum(self.runs[:, 1]) - self.runs[:, 1]
        own = order[np.searchsorted(self.runs[order, 0], runs[:, 0], side="right") - 1]
        at = starts[own] + runs[:, 0] - self.runs[own, 0]
        ends = at + runs[:, 1]
        begins = np.flatnonzero(np.append(True, at[1:] != ends[:-1])) if len(at) else np.empty(0, np.int64)
        stops = ends[np.append(begins[1:] - 1, -1)] if len(at) else at
        return [slice(*span) for span in zip(at[begins].tolist(), stops.tolist(), strict=True)]

    def take(self, runs: Ints) -> NDArray[Any]:
        """Return the values of `runs`, without a copy where they lie together."""
        spans = self.spans(runs)
        found = [self.values[span] for span in spans]
        return found[0] if len(found) == 1 else np.concatenate([self.values[:0], *found])


def runs_of(places: Ints) -> Ints:
    """Return (runs, 2) first and length of each run of consecutive `places`."""
    starts = np.flatnonzero(np.diff(places, prepend=-2) != 1)
    return np.stack([places[starts], np.diff(starts, append=len(places))], axis=1)


def places_of(runs: Ints) -> Ints:
    """Return the places of `runs`."""
    firsts, lengths = runs.T
    return np.arange(lengths.sum()) + np.repeat(firsts - (lengths.cumsum() - lengths), lengths)


def move_state(
    comm: Communicator, held: Sequence[TrainingState], wanted: Ints | None = None
) -> tuple[TrainingState | None, int]:
    """Return what this rank wants of the latest state that ranks hold completely, and the latest iteration held at all.

    Every rank of `comm` calls it. The state is None where no iteration is complete.

    Args:
        held: parts of states of any iterations; parts of one iteration are alike wherever they overlap.
        wanted: runs of places; None for all.

    Cost: each place goes directly from the first rank that holds it to each rank that wants and lacks it; nothing is
    collected, and nothing touches a disk.
    Paper: Wu et al. (GREYHOUND), section 5.2, strategy S3, steps 2 and 3.
    """
    mine = {
        "held": [[each.iteration, each.steps, each.size, each.runs.tolist()] for each in held],
        "dtype": held[0].values.dtype.str if held else "",
        "wanted": None if wanted is None else wanted.tolist(),
    }
    told = [json.loads(each) for each in gather_bytes(comm, json.dumps(mine).encode())]
    known = sorted({tuple(each[:3]) for its in told for each in its["held"]}, reverse=True)
    for iteration, steps, size in known:
        parts = [
            (rank, index, np.array(each[3], np.int64).reshape(-1, 2))
            for rank, its in enumerate(told)
            for index, each in enumerate(its["held"])
            if each[:2] == [iteration, steps]
        ]
        wanted_by = [[[0, size]] if its["wanted"] is None else its["wanted"] for its in told]
        wants = [np.array(runs, np.int64).reshape(-1, 2) for runs in wanted_by]
        ends = [run for runs in (*(part[2] for part in parts), *wants) for run in (runs[:, 0], runs.sum(1))]
        cuts = np.unique(np.concatenate([*ends, [0, size]]))
        has = np.array([_covered(runs, cuts) for _, _, runs in parts])
        if has.any(axis=0).all():
            break
    else:
        return None, known[0][0] if known else -1
    own = wants[comm.rank]
    dtype = next(its["dtype"] for its in told if its["dtype"])
    found = TrainingState(iteration, steps, size, own, np.empty(int(own[:, 1].sum()), dtype))
    needs = [_covered(runs, cuts) for runs in wants]
    holders = np.array([rank for rank, _, _ in parts])
    pieces = np.stack([cuts[:-1], np.diff(cuts)], axis=1)
    for at, given in _own_pieces(needs[comm.rank], holders == comm.rank, has):
        _put(found, pieces[given], held[parts[at][1]].take(pieces[given]))
    requests: list[Any] = []
    received: list[tuple[Ints, NDArray[Any]]] = []
    for source, to, at, given in _moved_pieces(comm.rank, needs, holders, has):
        if source == comm.rank:
            requests.append(comm.start_send(held[parts[at][1]].take(pieces[given]), to, tag=Lane.STATE))
            continue
        spans = found.spans(pieces[given])
        values = found.values[spans[0]] if len(spans) == 1 else np.empty(int(pieces[given, 1].sum()), dtype)
        requests.append(comm.start_recv(values, source, tag=Lane.STATE))
        received += [] if len(spans) == 1 else [(pieces[given], values)]
    for request in requests:
        request.wait()
    for runs, values in received:
        _put(found, runs, values)
    return found, known[0][0]


def _own_pieces(
    needed: NDArray[np.bool_], is_own: NDArray[np.bool_], has: NDArray[np.bool_]
) -> Iterator[tuple[int, NDArray[np.bool_]]]:
    """Yield (part, its pieces to copy) so that each needed piece that a rank's own parts have is taken once."""
    missing = needed.copy()
    for at in np.flatnonzero(is_own).tolist():
        if (given := missing & has[at]).any():
            missing &= ~given
            yield at, given


def _moved_pieces(
    rank: int, needs: Sequence[NDArray[np.bool_]], holders: Ints, has: NDArray[np.bool_]
) -> Iterator[tuple[int, int, int, NDArray[np.bool_]]]:
    """Yield (source, destination, part, pieces) of each message that `rank` sends or receives.

    The first part that has a piece is its source for all ranks that need and lack it. Both ends of a pair of ranks
    find their messages in the same order.

    Args:
        needs: by rank, (pieces,): which pieces it needs.
        holders: (parts,): the rank that holds each part.
        has: (parts, pieces): which pieces each part has.

    Cost: 0.1 s with 1,000 ranks of three parts each.
    """
    first = has.argmax(axis=0)
    for to, needed in enumerate(needs):
        missing = needed & ~has[holders == to].any(axis=0)
        if to != rank:
            missing &= holders[first] == rank
        for at in np.unique(first[missing]).tolist():
            yield int(holders[at]), to, at, missing & (first == at)


def _put(state: TrainingState, runs: Ints, values: NDArray[Any]) -> None:
    """Put the `values` of `runs` into `state`."""
    at = 0
    for span in state.spans(runs):
        state.values[span] = values[at : at + span.stop - span.start]
        at += span.stop - span.start


def _covered(runs: Ints, cuts: Ints) -> NDArray[np.bool_]:
    """Return (cuts - 1,): whether `runs`, whose ends are among the ascending `cuts`, cover what follows each cut."""
    depth = np.zeros(len(cuts), np.int64)
    np.add.at(depth, np.searchsorted(cuts, runs[:, 0]), 1)
    np.add.at(depth, np.searchsorted(cuts, runs.sum(1)), -1)
    return depth.cumsum()[:-1] > 0


# -- the stages of a rank


def _on_host(array: Any) -> Any:
    return array.get() if array is not None and is_device_array(array) else array


def _runs(copies: Copies, *, needed: bool) -> list[Ints]:
    """Return the runs of places of VECTORS of each stage: those `needed` to run it, or that the rank answers for."""
    found = []
    for number, stage in copies.stages.items():
        whole = sum(layer.num_whole for layer in stage.model.layers)
        own = _stage_runs(stage, copies.part(number))
        parameters = _stage_runs(stage, slice(None)) if needed else own
        found += [parameters, own + np.array([whole, 0]), own + np.array([2 * whole, 0])]
    return found


def _stage_runs(stage: LayerStage, part: slice) -> Ints:
    """Return the runs of places of a part of a stage's parameters."""
    if stage.chain.num_whole != stage.chain.num_parameters:
        return runs_of(stage.places()[part])
    own = range(stage.chain.num_parameters)[part]
    return np.array([[stage.first_place + own.start, len(own)]])


def needed_runs(copies: Copies) -> Ints:
    """Return the runs of places that a rank's stages need."""
    return np.concatenate(_runs(copies, needed=True))


def seat_counts(copies: Copies) -> Ints:
    """Return (stages,) how many parameters of each of its stages this rank answers for: all, or if sharded its part."""
    counts = [len(range(stage.chain.num_parameters)[copies.part(number)]) for number, stage in copies.stages.items()]
    return np.array(counts, np.int64)


def seat_arrays(copies: Copies) -> list[StageArray]:
    """Return the parameters of each stage that this rank answers for, and their averages; zeros before the first step.

    They are where they lie if that is on the host.
    """
    found: list[StageArray] = []
    for (number, stage), count in zip(copies.stages.items(), seat_counts(copies), strict=True):
        averages = stage.optimizer.mean, stage.optimizer.square
        found.append(_on_host(stage.parameters[copies.part(number)])[:count])
        found += [np.zeros(count, stage.dtype) if x is None else _on_host(x)[:count] for x in averages]
    return found


def seat_gradients(copies: Copies) -> list[StageArray]:
    """Return the gradients of each stage's parameters that this rank answers for."""
    counts = zip(copies.stages.items(), seat_counts(copies), strict=True)
    return [_on_host(stage.gradients[copies.part(number)])[:count] for (number, stage), count in counts]


def seat_parts(copies: Copies, iteration: int) -> list[TrainingState]:
    """Return the parts of the state that this rank answers for, where seat_arrays has them: nothing is copied."""
    stage = next(iter(copies.stages.values()))
    size = len(VECTORS) * sum(layer.num_whole for layer in stage.model.layers)
    pairs = zip(_runs(copies, needed=False), seat_arrays(copies), strict=True)
    return [TrainingState(iteration, stage.optimizer.steps, size, runs, values) for runs, values in pairs]


def seat_state(copies: Copies, iteration: int, out: StageArray | None = None) -> TrainingState:
    """Return the part of the state that this rank answers for, with its values in `out` if that is given."""
    parts = seat_parts(copies, iteration)
    runs = np.concatenate([part.runs for part in parts])
    values = np.concatenate([part.values for part in parts], out=out)
    return TrainingState(iteration, parts[0].steps, parts[0].size, runs, values)


def put_state(state: TrainingState, copies: Copies) -> None:
    """Put what this rank's stages need of `state` into them.

    Raises:
        InputError: the state is of another model.
    """
    model = next(iter(copies.stages.values())).model
    expected = len(VECTORS) * sum(layer.num_whole for layer in model.layers)
    if state.size != expected:
        raise InputError(f"state: got {state.size} numbers, expected {expected}: those of this model")
    values = state.take(needed_runs(copies))
    for (number, stage), own in zip(copies.stages.items(), seat_counts(copies).tolist(), strict=True):
        count, part = stage.chain.num_parameters, copies.part(number)
        parameters, mean, square, values = np.split(values, np.cumsum([count, own, own]))
        stage.parameters[:count] = stage.xp.asarray(parameters)
        for name, given in (("mean", mean), ("square", square)):
            average = stage.xp.zeros_like(stage.parameters[part])
            average[:own] = stage.xp.asarray(given)
            setattr(stage.optimizer, name, average)
        stage.optimizer.steps = state.steps
