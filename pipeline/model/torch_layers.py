"""PyTorch modules as the layers of a model: one's own network under plans, copies, ZeRO-1, checkpoints and adaptation.

A module's parameters lie in its stage's flat vector, which torch's tensors share: what an optimizer, a reduction or a
checkpoint writes there is what the module computes with. Arrays go to torch and back without a copy but of results.
BW goes back through the module once. B and W each do, so W computes again what B did of the gradients between its
parts: for plans that split the backward, cut a network into several modules rather than into one. Has run on CPUs only.
Needs the extra torch.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lanterne.errors import InputError, Unavailable
from lanterne.pipeline.model.layer import Array, Floats, Kept, Layer, Out, Views
from lanterne.pipeline.model.stage_layers import Shape, StageModel


def import_torch() -> Any:
    """The torch module.

    Raises:
        Unavailable: it is not installed.
    """
    try:
        import torch
    except ImportError:
        raise Unavailable("torch: is not installed; `pip install torch`") from None
    return torch


class TorchGraph:
    """What a module's F keeps for B and W: its input, its output, which know how they came about, and its parameters.

    Attributes: `nbytes`, of the output: what else autograd keeps is not known.
    """

    def __init__(self, x: Any, y: Any, parameters: list[Any]) -> None:
        self.x = x
        self.y = y
        self.parameters = parameters
        self.nbytes: int = int(y.numel() * y.element_size())
        # Where what is counted once lies, as arrays say it.
        self.__array_interface__: dict[str, tuple[int, bool]] = {"data": (int(y.data_ptr()), False)}

    @property
    def ndim(self) -> int:
        """Raise InputError: what autograd keeps cannot go to the host, which is who asks."""
        raise InputError("--cap: got layers of torch, whose saved activations stay where they are; expected none")


@dataclass(frozen=True, eq=False)
class TorchLayer(Layer):
    """A torch.nn.Module of one tensor; its parameters begin as they are in the module.

    The same modules must be made on every rank: seed torch before. Buffers stay what they are; a module that changes
    them in training, such as batch normalisation, is refused by `torch_model`.
    """

    module: Any

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(value.shape) for name, value in self.module.named_parameters()}

    def initial(self, random: np.random.Generator) -> Floats:
        values = [value.detach().double().cpu().numpy().reshape(-1) for value in self.module.parameters()]
        return np.concatenate([np.empty(0), *values])

    def forward(self, parameters: Views, x: Array, out: Out = None) -> tuple[Array, Kept]:
        torch = import_torch()
        own = {name: _tensor(torch, view).requires_grad_() for name, view in parameters.items()}
        given = _tensor(torch, x)
        given = given.requires_grad_() if given.is_floating_point() else given.long()
        with torch.enable_grad():
            y = torch.func.functional_call(self.module, own, (given,))
        return _result(y.detach(), out), TorchGraph(given, y, list(own.values()))

    def backward_input(self, parameters: Views, saved: TorchGraph, dy: Array, out: Out = None) -> tuple[Any, Kept]:
        torch = import_torch()
        slope = _tensor(torch, dy)
        if not saved.x.requires_grad:
            return None, (saved, dy)
        # W goes back through the same graph.
        (dx,) = torch.autograd.grad(saved.y, saved.x, slope, retain_graph=True)
        return _result(dx, out), (saved, dy)

    def backward_weight(self, kept: tuple[TorchGraph, Array], gradients: Views) -> None:
        torch, (saved, dy) = import_torch(), kept
        if not saved.parameters:
            return
        found = torch.autograd.grad(saved.y, saved.parameters, _tensor(torch, dy), allow_unused=True)
        _add(torch, gradients, found)

    def backward(self, parameters: Views, saved: TorchGraph, dy: Array, gradients: Views, out: Out = None) -> Any:
        torch = import_torch()
        wanted = [saved.x] * saved.x.requires_grad + saved.parameters
        if not wanted:
            return None
        found = list(torch.autograd.grad(saved.y, wanted, _tensor(torch, dy), allow_unused=True))
        dx = found.pop(0) if saved.x.requires_grad else None
        _add(torch, gradients, found)
        return None if dx is None else _result(dx, out)


def _add(torch: Any, gradients: Views, found: Sequence[Any]) -> None:
    for into, gradient in zip(gradients.values(), found, strict=True):
        if gradient is not None:
            _tensor(torch, into).add_(gradient)


@dataclass(frozen=True)
class TorchLoss:
    """A function of torch, (y, target) -> a tensor with one number, such as torch.nn.functional.cross_entropy."""

    function: Callable[[Any, Any], Any]

    def forward(self, y: Array, target: Array, /) -> tuple[Array, Kept]:
        torch = import_torch()
        given, wanted = _tensor(torch, y).requires_grad_(), _tensor(torch, target)
        with torch.enable_grad():
            loss = self.function(given, wanted if wanted.is_floating_point() else wanted.long())
        return _result(loss.detach(), None), TorchGraph(given, loss, [])

    def backward_input(self, saved: TorchGraph, scale: float) -> Array:
        torch = import_torch()
        (slope,) = torch.autograd.grad(saved.y, saved.x, torch.full_like(saved.y, scale))
        return _result(slope, None)


def torch_model(modules: Sequence[Any], loss: Callable[[Any, Any], Any], example: Array) -> StageModel:
    """The StageModel of torch modules one after the other, to be cut between any two of them.

    Args:
        modules: of one tensor each, alike on every rank; the model has copies of them.
        loss: of the last one's output and a microbatch's targets.
        example: inputs of one microbatch; of whole numbers, targets are such too, of its shape.

    Raises:
        Unavailable: torch is not installed.
        InputError: no module, one that is none, or one that changes its buffers.
    """
    torch = import_torch()
    if not modules:
        raise InputError("torch_model: got no modules, expected at least one")
    for i, module in enumerate(modules):
        if not isinstance(module, torch.nn.Module):
            raise InputError(f"modules[{i}]: got a {type(module).__name__}, expected a torch.nn.Module")
        if any(name.endswith("num_batches_tracked") for name, _ in module.named_buffers()):
            raise InputError(f"modules[{i}]: got batch normalisation, whose averages no stage shares, expected none")
    whole = np.issubdtype(example.dtype, np.integer)
    # While a module computes it holds its stage's tensors: ranks that are threads need one each.
    layers = tuple(TorchLayer(copy.deepcopy(module)) for module in modules)
    shapes: list[Shape] = [tuple(example.shape)]
    with torch.no_grad():
        x = torch.from_numpy(np.ascontiguousarray(example))
        first = next((value for module in modules for value in module.parameters()), None)
        x = x if whole or first is None else x.to(first.dtype)
        for i, module in enumerate(modules):
            try:
                x = module(x)
            except Exception as error:
                raise InputError(f"modules[{i}]: {type(error).__name__}: {error}") from error
            shapes.append(tuple(x.shape))
    check = _check_whole if whole else None
    return StageModel(layers, TorchLoss(loss), tuple(shapes), check, check)


def _check_whole(arrays: Array) -> None:
    if not np.issubdtype(arrays.dtype, np.integer):
        raise InputError(f"inputs or targets: got {arrays.dtype}, expected whole numbers, as in the example")


def _tensor(torch: Any, array: Array) -> Any:
    """A tensor that shares the memory of a NumPy or CuPy array."""
    if isinstance(array, torch.Tensor):
        return array
    if isinstance(array, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(array))
    return torch.from_dlpack(array)


def _result(tensor: Any, out: Out) -> Array:
    """A tensor's numbers in `out`, or in an array of their own."""
    if tensor.device.type == "cpu":
        array = tensor.numpy()
    else:
        import cupy

        array = cupy.from_dlpack(tensor.contiguous())
    if out is None:
        copied: Array = array.copy()
        return copied
    out[...] = array
    return out
