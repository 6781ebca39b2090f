"""The state of a model whose parameters are sharded over ranks (FSDP2), as bytes that ranks can take from each other.

Places are bytes of the whole state: all parameters, then what the optimizer keeps of each in its shape. They do not
depend on how many ranks share them, so a state goes on in a group of another size. The rest, which is alike on all
ranks (counts, groups of the optimizer, buffers, schedules), is one document.
"""

import io
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.tensor import DTensor

from lanterne.errors import InputError, LanterneError
from lanterne.pipeline.train.state import TrainingState
from lanterne.torch.tensor_views import on_cpu


class StateTensor(NamedTuple):
    """A tensor of the state: parameter `name`, or with a `key` what the optimizer keeps of it."""

    name: str
    key: str
    dtype: str


class ShardedState:
    """The state of `model`, whose parameters are on the ranks of the default group, of its optimizer, and of others.

    Args:
        others: further objects with state_dict and load_state_dict, alike on all ranks.

    Raises:
        InputError: a parameter is sharded along another dimension than its first.
    """

    def __init__(self, model: torch.nn.Module, optimizer: Any, others: Sequence[Any]) -> None:
        self._model, self._optimizer, self._others = model, optimizer, others
        self._parameters = dict(model.named_parameters())
        self._was_read = False
        self._bounds = {name: _bounds_of(name, each) for name, each in self._parameters.items()}

    def layout(self) -> list[StateTensor]:
        """Return the tensors of the state, in the order of their places; the optimizer has made a step."""
        found = [StateTensor(name, "", _name_of(each.dtype)) for name, each in self._parameters.items()]
        for name, parameter in self._parameters.items():
            its = self._optimizer.state.get(parameter, {})
            found += [
                StateTensor(name, key, _name_of(its[key].dtype))
                for key in sorted(its)
                if _is_alike(its[key], parameter)
            ]
        return found

    def runs(self, layout: Sequence[StateTensor]) -> tuple[NDArray[np.int64], int]:
        """Return (runs, 2) first and length of the bytes that this rank holds, and the number of bytes of all."""
        runs, at = [], 0
        for name, _, dtype in layout:
            nbytes, (first, stop, whole) = _dtype_of(dtype).itemsize, self._bounds[name]
            runs.append([at + first * nbytes, (stop - first) * nbytes])
            at += whole * nbytes
        return np.array(runs, np.int64).reshape(-1, 2), at

    def take(self, steps: int) -> TrainingState:
        """Return a copy on the host of what this rank holds after so many `steps`."""
        layout = self.layout()
        runs, size = self.runs(layout)
        values = np.empty(int(runs[:, 1].sum()), np.uint8)
        for part, local in zip(_parts(values, runs), map(self._local, layout), strict=True):
            torch.from_numpy(part).copy_(_bytes_of(local))
        return TrainingState(steps, steps, size, runs, values)

    def put(self, state: TrainingState, layout: Sequence[StateTensor], rest: bytes) -> None:
        """Put this rank's part of a state, in the order of `layout`, and the `rest` into the model and all else."""
        document = torch.load(io.BytesIO(rest), weights_only=True)
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                its = dict(document["scalars"].get(name, {}))
                # Fused optimizers count their steps on the device.
                its |= {key: its[key].to(parameter.device) for key in document["on_device"].get(name, ())}
                if its:
                    self._optimizer.state[parameter] = its
            for kept, part in zip(layout, _parts(state.values, state.runs), strict=True):
                parameter = self._parameters[kept.name]
                if kept.key:
                    made = torch.zeros_like(parameter, dtype=_dtype_of(kept.dtype), requires_grad=False)
                    self._optimizer.state[parameter][kept.key] = made
                _bytes_of(self._local(kept)).copy_(torch.from_numpy(part))
            for name, buffer in self._model.named_buffers():
                buffer.copy_(document["buffers"][name])
        for group, known in zip(self._optimizer.param_groups, document["groups"], strict=True):
            group.update(known)
        for other, known in zip(self._others, document["others"], strict=True):
            other.load_state_dict(known)

    def rest(self) -> bytes:
        """Return what is the same on all ranks, as torch.save writes it; raise InputError if it could not be read."""
        scalars: dict[str, dict[str, Any]] = {}
        on_device: dict[str, list[str]] = {}
        for name, parameter in self._parameters.items():
            its = self._optimizer.state.get(parameter, {})
            alone = {key: value for key, value in its.items() if not _is_alike(value, parameter)}
            scalars[name] = {key: on_cpu(value) for key, value in alone.items()}
            tensors = {key: value for key, value in alone.items() if isinstance(value, torch.Tensor)}
            on_device[name] = [key for key, value in tensors.items() if value.device.type != "cpu"]
        groups = [
            {key: on_cpu(value) for key, value in group.items() if key != "params"}
            for group in self._optimizer.param_groups
        ]
        buffers = {name: on_cpu(each) for name, each in self._model.named_buffers()}
        others = [on_cpu(each.state_dict()) for each in self._others]
        document = {"scalars": scalars, "on_device": on_device, "groups": groups, "buffers": buffers, "others": others}
        torch.save(document, packed := io.BytesIO())
        if not self._was_read:
            # Else a death would show it first.
            try:
                torch.load(io.BytesIO(packed.getvalue()), weights_only=True)
            except Exception as error:
                why = str(error).splitlines()[0]
                raise InputError(
                    f"run_resilient_sharded: got a state_dict or param_groups with other values than tensors, numbers, "
                    f"texts, lists and dicts, which torch.load(weights_only=True) refuses: {why}"
                ) from None
            self._was_read = True
        return packed.getvalue()

    def _local(self, kept: StateTensor) -> torch.Tensor:
        """Return this rank's part of a tensor."""
        parameter = self._parameters[kept.name]
        found = self._optimizer.state[parameter][kept.key] if kept.key else parameter.detach()
        return found.to_local() if isinstance(found, DTensor) else found


def _bounds_of(name: str, parameter: torch.Tensor) -> tuple[int, int, int]:
    """Return the first element of this rank's part of a parameter, that behind its last, and the number of all."""
    whole = parameter.numel()
    if not isinstance(parameter, DTensor):
        return 0, whole, whole
    mesh = parameter.device_mesh
    place = (mesh.mesh == dist.get_rank()).nonzero().tolist()
    if place != [list(mesh.get_coordinate() or ())]:
        got = f"got a mesh {mesh.mesh.tolist()} with this rank at {mesh.get_coordinate()}"
        raise LanterneError(f"parameter {name}: {got}, expected {place}: torch has kept it from other ranks")
    (chunk,) = parameter.__create_chunk_list__()
    if tuple(chunk.sizes[1:]) != tuple(parameter.shape[1:]):
        raise InputError(
            f"parameter {name}: got shape {tuple(parameter.shape)} with {tuple(chunk.sizes)} of it on this rank, "
            "expected one that is sharded along its first dimension alone"
        )
    row = prod(parameter.shape[1:])
    first = chunk.offsets[0] * row if chunk.sizes[0] else 0
    return first, first + chunk.sizes[0] * row, whole


def _is_alike(value: object, parameter: torch.Tensor) -> bool:
    """Return whether the optimizer's `value` has the shape of `parameter`, and is cut as it is."""
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape == parameter.shape


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a contiguous tensor, which share its memory."""
    return tensor.detach().view(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)


def _parts(values: NDArray[Any], runs: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
    """Yield the values of each of `runs`."""
    at = 0
    for length in runs[:, 1].tolist():
        yield values[at : at + length]
        at += length


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype_of(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, name)
    return found
