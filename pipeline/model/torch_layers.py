"""PyTorch modules as the layers of a model: one's own network under plans, copies, ZeRO-1, checkpoints and adaptation.

A module's parameters lie in its stage's flat vector, which torch's tensors share: what an optimizer, a reduction or a
checkpoint writes there is what the module computes with. Arrays go to torch and back without a copy but of results.
BW goes back through the module once. B goes along the way to the input alone, and keeps the gradients that come by
where parameters join it; W goes on from there. Only of parameters that join it in several places W goes back from the
output again. Has run on CPUs only. Needs the extra torch.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from lanterne.errors import InputError, Unavailable
from lanterne.pipeline.model.layer import Array, Floats, Kept, Layer, Out, Views
from lanterne.pipeline.model.stage_layers import Shape, StageModel

# Of each parameter's name, the dicts that hold it, and its name there.
Owners: TypeAlias = Mapping[str, Sequence[tuple[dict[str, Any], str]]]


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

    Attributes: `nbytes`, of the output: what else autograd keeps is not known; `joints`, what B leaves to W.
    """

    def __init__(self, x: Any, y: Any, parameters: list[Any]) -> None:
        self.x = x
        self.y = y
        self.parameters = parameters
        self.joints: list[Joint] = []
        self.nbytes: int = int(y.numel() * y.element_size())
        # Where what is counted once lies, as arrays say it.
        self.__array_interface__: dict[str, tuple[int, bool]] = {"data": (int(y.data_ptr()), False)}

    @property
    def ndim(self) -> int:
        """Raise InputError: what autograd keeps cannot go to the host, which is who asks."""
        raise InputError("--cap: got layers of torch, whose saved activations stay where they are; expected none")


class Joint:
    """Where parameters join the way from a module's input to its output, and the gradient that B sees there.

    Args:
        node: of autograd; None for parameters that join it in several places.
        parameters: places in the TorchGraph's list of those that join it here.
    """

    def __init__(self, node: Any, parameters: list[int]) -> None:
        self.node = node
        self.parameters = parameters
        self.slopes: Sequence[Any] = ()

    def keep(self, slopes: Sequence[Any]) -> None:
        """Take note of the gradients by what the node gave, as B comes by."""
        self.slopes = slopes

    def ends(self, torch: Any) -> tuple[list[Any], list[Any]]:
        """Where W begins, and the gradients there; none if B did not come by."""
        used = [i for i, slope in enumerate(self.slopes) if slope is not None]
        return [torch.autograd.graph.GradientEdge(self.node, i) for i in used], [self.slopes[i] for i in used]


def find_joints(saved: TorchGraph) -> list[Joint]:
    """The Joints of a graph whose input has a gradient.

    Cost: a visit of each of its nodes; there are some 50 in a transformer's block.
    """
    users: dict[Any, list[Any]] = {}
    leaves: dict[int, Any] = {}
    found = [saved.y.grad_fn]
    seen = {saved.y.grad_fn}
    for node in found:
        variable = getattr(node, "variable", None)
        if variable is not None:
            leaves[id(variable)] = node
        for before, _ in node.next_functions:
            if before is None:
                continue
            users.setdefault(before, []).append(node)
            if before not in seen:
                seen.add(before)
                found.append(before)
    way = _all_above([leaves[id(saved.x)]] if id(saved.x) in leaves else [], users, set())
    joints: dict[Any, list[int]] = {}
    for i, parameter in enumerate(saved.parameters):
        leaf = leaves.get(id(parameter))
        if leaf is not None:
            met = _all_above([leaf], users, way) & way
            joints.setdefault(met.pop() if len(met) == 1 else None, []).append(i)
    return [Joint(node, parameters) for node, parameters in joints.items()]


def _all_above(nodes: Sequence[Any], users: Mapping[Any, Sequence[Any]], stop: set[Any]) -> set[Any]:
    """`nodes`, and all that use them; not what uses one of `stop`."""
    found = list(nodes)
    seen = set(nodes)
    for node in found:
        for user in () if node in stop else users.get(node, ()):
            if user not in seen:
                seen.add(user)
                found.append(user)
    return seen


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
        with torch.enable_grad(), _in_place_of(self._owners, own):
            y = self.module(given)
        return _result(y.detach(), out), TorchGraph(given, y, list(own.values()))

    @cached_property
    def _owners(self) -> Owners:
        """Of each parameter, the dicts of modules that hold it, and its name there; one that is shared has several."""
        found: dict[int, list[tuple[dict[str, Any], str]]] = {}
        for module in self.module.modules():
            for name, value in module._parameters.items():
                found.setdefault(id(value), []).append((module._parameters, name))
        return {name: found[id(value)] for name, value in self.module.named_parameters()}

    def backward_input(self, parameters: Views, saved: TorchGraph, dy: Array, out: Out = None) -> tuple[Any, Kept]:
        torch = import_torch()
        if not saved.x.requires_grad:
            return None, (saved, dy)
        saved.joints = find_joints(saved)
        watched = [joint.node.register_prehook(joint.keep) for joint in saved.joints if joint.node]
        # W goes on in the same graph.
        (dx,) = torch.autograd.grad(saved.y, saved.x, _tensor(torch, dy), retain_graph=True)
        for each in watched:
            each.remove()
        return _result(dx, out), (saved, dy)

    def backward_weight(self, kept: tuple[TorchGraph, Array], gradients: Views) -> None:
        torch, (saved, dy) = import_torch(), kept
        if not saved.parameters:
            return
        if not saved.x.requires_grad:
            _add_up(torch, saved.parameters, gradients, saved.y, _tensor(torch, dy))
            return
        into = list(gradients.values())
        for joint in saved.joints:
            ends, slopes = joint.ends(torch) if joint.node else ([saved.y], [_tensor(torch, dy)])
            if not ends:
                continue
            wanted = [saved.parameters[i] for i in joint.parameters]
            found = torch.autograd.grad(ends, wanted, slopes, retain_graph=True, allow_unused=True)
            for i, gradient in zip(joint.parameters, found, strict=True):
                if gradient is not None:
                    _tensor(torch, into[i]).add_(gradient)

    def backward(self, parameters: Views, saved: TorchGraph, dy: Array, gradients: Views, out: Out = None) -> Any:
        torch = import_torch()
        wanted = [saved.x] * saved.x.requires_grad + saved.parameters
        if not wanted:
            return None
        _add_up(torch, saved.parameters, gradients, saved.y, _tensor(torch, dy), saved.x)
        dx = saved.x.grad
        return None if dx is None else _result(dx, out)


@contextmanager
def _in_place_of(owners: Owners, tensors: Mapping[str, Any]) -> Iterator[None]:
    """Modules compute with `tensors` as their parameters meanwhile.

    As torch.func.functional_call has it, in a tenth of its time, which was 5 % of a block of width 256.
    """
    before = [(held, name, held[name]) for places in owners.values() for held, name in places]
    try:
        for own, places in owners.items():
            for held, name in places:
                held[name] = tensors[own]
        yield
    finally:
        for held, name, value in before:
            held[name] = value


def _add_up(torch: Any, parameters: Sequence[Any], gradients: Views, y: Any, slope: Any, x: Any = None) -> None:
    """Go back from `y` to the parameters, whose `gradients` grow, and to `x`, which holds its gradient then.

    Each gradient is added while it is in the cache, not all of them after the last.
    """
    for own, into in zip(parameters, gradients.values(), strict=True):
        own.grad = _tensor(torch, into)
    wanted = [*parameters, x] if x is not None and x.requires_grad else [*parameters]
    torch.autograd.backward(y, slope, inputs=wanted)


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
