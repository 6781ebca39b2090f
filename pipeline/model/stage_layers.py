"""Stages made of layers: a model is cut between any two of its layers, and computes the same however it is cut."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from types import ModuleType
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from lanterne.errors import InputError
from lanterne.pipeline.execute.stage import Message, Samples, Stage
from lanterne.pipeline.model.held import HeldMicrobatch, HeldMicrobatches
from lanterne.pipeline.model.layer import Array, Ints, Layer, LayerChain
from lanterne.pipeline.model.losses import Loss

Shape: TypeAlias = tuple[int, ...]
Check: TypeAlias = Callable[[Array], None]
Through: TypeAlias = Callable[[int, HeldMicrobatch, Message], None]


class Optimizer(Protocol):
    """What turns gradients into new parameters, such as Adam.

    What a checkpoint holds of it: `steps`, how many were made, and two vectors as long as the parameters, `mean` and
    `square`, None before the first step.
    """

    steps: int
    mean: Array | None
    square: Array | None

    def step(self, parameters: Array, gradients: Array) -> None:
        """One update of `parameters` by `gradients`, of one shape."""


@dataclass(frozen=True)
class StageModel:
    """Layers one after the other, and a loss.

    Attributes:
        layers: what a stage holds is a run of these.
        loss: of a microbatch, such as CrossEntropy.
        shapes: (len(layers) + 1,) shapes of one microbatch's activations before, between and after the layers.
        check_inputs, check_targets: functions called with all of an iteration's, which raise InputError; None for none.
    """

    layers: tuple[Layer, ...]
    loss: Loss
    shapes: tuple[Shape, ...]
    check_inputs: Check | None = None
    check_targets: Check | None = None

    def starts(self, num_stages: int) -> tuple[int, ...]:
        """(num_stages + 1,) ints: stage i holds layers starts[i] to starts[i + 1] - 1, of equal numbers.

        Raises:
            InputError: fewer layers than stages.
        """
        if not 1 <= num_stages <= len(self.layers):
            raise InputError(f"stages: got {num_stages}, expected 1 to {len(self.layers)}, the layers of the model")
        return tuple(len(self.layers) * stage // num_stages for stage in range(num_stages + 1))


def make_stages(
    model: StageModel,
    num_stages: int,
    make_optimizer: Callable[[], Optimizer],
    dtype: DTypeLike = np.float32,
    seed: int = 0,
    xp: ModuleType = np,
    starts: Sequence[int] | None = None,
    multiple: int = 1,
) -> "list[LayerStage]":
    """The model's stages.

    Args:
        make_optimizer: returns the optimizer of one stage.
        dtype: of parameters and activations, float32 or float64.
        seed: of the parameters; each layer's depend on it and on the layer's place in the model, not on the cut.
        xp: the array module, numpy or cupy.
        starts: where the stages begin, as a Partition has it; None for equal numbers of layers.
        multiple: as LayerStage has it.

    Raises:
        InputError: fewer layers than stages, or starts that do not cut the model.
    """
    starts = model.starts(num_stages) if starts is None else check_starts(model, num_stages, starts)
    return [LayerStage(model, a, b, make_optimizer(), dtype, seed, xp, multiple) for a, b in pairwise(starts)]


def check_starts(model: StageModel, num_stages: int, starts: Sequence[int]) -> tuple[int, ...]:
    """`starts`, if they cut the model into `num_stages` stages.

    Raises:
        InputError: they do not.
    """
    starts = tuple(starts)
    cuts = [0, *starts[1:-1], len(model.layers)]
    if len(starts) != num_stages + 1 or starts != tuple(cuts) or any(a >= b for a, b in pairwise(starts)):
        raise InputError(
            f"starts: got {starts}, expected {num_stages + 1} ascending numbers from 0 to {len(model.layers)}"
        )
    return starts


class LayerStage(Stage):
    """Layers start to stop - 1 of a model.

    Parts of an action are runs of layers, of as equal a number as can be.

    Args:
        optimizer: None for a stage that is never asked to step.
        seed: of the parameters; None for zeros, where a state will be put.
        multiple: the vectors are this long or a multiple, zeros at their end, so that so many ranks can share them.

    Attributes:
        chain: the LayerChain of its layers.
        held: what it holds of the microbatches under way.
        parameters, gradients: (chain.num_parameters,) arrays, or longer; gradients are the sums of this iteration's W
            so far, of the mean of the microbatches' losses.
    """

    def __init__(
        self,
        model: StageModel,
        start: int,
        stop: int,
        optimizer: Optimizer | None,
        dtype: DTypeLike = np.float32,
        seed: int | None = 0,
        xp: ModuleType = np,
        multiple: int = 1,
    ) -> None:
        chain = LayerChain(model.layers[start:stop])
        self.chain: LayerChain = chain
        self.model = model
        self.layers: tuple[Layer, ...] = chain.layers
        self._optimizer = optimizer
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.xp = xp
        self.input_shape: Shape | None = model.shapes[start] if start else None
        self.output_shape: Shape | None = model.shapes[stop] if stop < len(model.layers) else None
        self.parameters: Array = xp.zeros(-(-chain.num_parameters // multiple) * multiple, self.dtype)
        if seed is not None:
            drawn = _drawn(self.layers, start, seed)
            self.parameters[: len(drawn)] = xp.asarray(drawn.astype(self.dtype))
        self.gradients: Array = xp.zeros_like(self.parameters)
        self._start = start
        self._parameters = chain.split(self.parameters)
        self._gradients = chain.split(self.gradients)
        self.held: HeldMicrobatches = HeldMicrobatches()
        self._losses: dict[int, Array] = {}
        self._scale = 1.0
        self._inputs: Any = None
        self._targets: Any = None

    @property
    def optimizer(self) -> Optimizer:
        """What `step` asks."""
        assert self._optimizer is not None, "this stage was made without an optimizer"
        return self._optimizer

    @property
    def first_place(self) -> int:
        """Where its first layer's parameters begin in the vector of all of the model's, whole ones."""
        return sum(layer.num_whole for layer in self.model.layers[: self._start])

    def places(self) -> Ints:
        """(chain.num_parameters,) int64: where its parameters are in the vector of all of the model's, whole ones."""
        return self.first_place + self.chain.part_of(np.arange(self.chain.num_whole))

    def begin(self, microbatches: int, inputs: Samples = None, targets: Samples = None) -> None:
        """See Stage.

        Raises:
            InputError: an iteration is under way, or inputs or targets are missing or not what the model takes.
        """
        if self.in_flight:
            raise InputError(f"begin: microbatches {self.in_flight} are under way, expected all W before")
        given = partial(_given, self.xp, self.dtype)
        self._losses, self._scale = {}, 1 / microbatches
        if self.input_shape is None:
            self._inputs = given("inputs", inputs, microbatches, self.model.check_inputs)
        if self.output_shape is None:
            self._targets = given("targets", targets, microbatches, self.model.check_targets)

    def forward(
        self, microbatch: int, x: Message = None, out: Message = None, part: int = 1, parts: int = 1
    ) -> Message:
        """See Stage.

        Raises:
            InputError: out of order, or an array of another shape or dtype.
        """
        if part == 1:
            if self.input_shape is not None:
                x = _checked("x", x, self.dtype, self.input_shape)
            elif microbatch not in self.in_flight:
                x = self._inputs[microbatch]
            self.held.begin(microbatch, len(self.layers), x)
        held = self.held.waiting(microbatch, "F")
        for index in _run(len(self.layers), part, parts):
            last = index == len(self.layers) - 1
            target = _lent(out, self.dtype, self.output_shape) if last and self.output_shape else None
            held.carried, held.entries[index] = self.layers[index].forward(
                self._parameters[index], held.carried, target
            )
        if part < parts:
            return None
        y, held.carried, held.state = held.carried, None, "B"
        if self.output_shape is not None:
            return y
        self._losses[microbatch], held.entries[-1] = self.model.loss.forward(y, self._targets[microbatch])
        return None

    def backward_input(
        self, microbatch: int, dy: Message = None, out: Message = None, part: int = 1, parts: int = 1
    ) -> Message:
        """See Stage.

        Raises:
            InputError: out of order, or an array of another shape or dtype.
        """
        held, dx = self._back(microbatch, dy, out, part, parts, self._through_input)
        if part == parts:
            held.state = "W"
        return dx

    def backward(
        self, microbatch: int, dy: Message = None, out: Message = None, part: int = 1, parts: int = 1
    ) -> Message:
        """See Stage; raises as `backward_input`."""
        _, dx = self._back(microbatch, dy, out, part, parts, self._through_both)
        if part == parts:
            self.held.end(microbatch)
        return dx

    def _through_input(self, index: int, held: HeldMicrobatch, target: Message) -> None:
        held.carried, held.entries[index] = self.layers[index].backward_input(
            self._parameters[index], held.entries[index], held.carried, target
        )

    def _through_both(self, index: int, held: HeldMicrobatch, target: Message) -> None:
        held.carried = self.layers[index].backward(
            self._parameters[index], held.entries[index], held.carried, self._gradients[index], target
        )
        held.entries[index] = None

    def _back(
        self, microbatch: int, dy: Message, out: Message, part: int, parts: int, through: Through
    ) -> tuple[HeldMicrobatch, Message]:
        """Go back `through` the layers of a part; what is held, and the gradient by the input after the last part."""
        held = self.held.waiting(microbatch, "B")
        if part == 1 and self.output_shape is not None:
            held.carried = _checked("dy", dy, self.dtype, self.output_shape)
        elif part == 1:
            held.carried = self.model.loss.backward_input(held.entries[-1], self._scale)
            held.entries[-1] = None
        for index in _run(len(self.layers), part, parts, backward=True):
            target = None if index or self.input_shape is None else _lent(out, self.dtype, self.input_shape)
            through(index, held, target)
            held.passed += 1
        if part < parts:
            return held, None
        dx, held.carried = held.carried, None
        return held, dx if self.input_shape is not None else None

    def backward_weight(self, microbatch: int, part: int = 1, parts: int = 1) -> None:
        """See Stage. With the same parts as B, a part of W may follow the same part of B at once: BW in parts.

        Raises:
            InputError: out of order.
        """
        run = _run(len(self.layers), part, parts, backward=True)
        held = self.held.find(microbatch)
        if held is None or part == parts or held.passed < len(self.layers) - min(run, default=len(self.layers)):
            held = self.held.waiting(microbatch, "W")
        for index in run:
            self.layers[index].backward_weight(held.entries[index], self._gradients[index])
            held.entries[index] = None
        if part == parts:
            self.held.end(microbatch)

    def step(self) -> None:
        """See Stage.

        Raises:
            InputError: microbatches are under way.
        """
        if self.in_flight:
            raise InputError(f"step: microbatches {self.in_flight} are under way, expected all W before")
        self.optimizer.step(self.parameters, self.gradients)
        self.gradients[...] = 0

    @property
    def in_flight(self) -> list[int]:
        """The microbatches whose F has begun and whose W has not ended, ascending."""
        return self.held.numbers

    @property
    def losses(self) -> dict[int, float]:
        return {microbatch: float(loss) for microbatch, loss in self._losses.items()}

    @property
    def nbytes_held(self) -> int:
        """See Stage. Memory that several layers hold counts once; what is set aside does not."""
        return self.held.nbytes


def _drawn(layers: Sequence[Layer], start: int, seed: int) -> Array:
    """The initial parameters of layers `start` and on of a model, whatever its cut."""
    return np.concatenate([layer.initial(np.random.default_rng([seed, start + i])) for i, layer in enumerate(layers)])


def _run(count: int, part: int, parts: int, *, backward: bool = False) -> range:
    """The layers of a part, among `count`, in the order in which they run."""
    order = range(count)[::-1] if backward else range(count)
    return order[count * (part - 1) // parts : count * part // parts]


def _given(
    xp: ModuleType, dtype: np.dtype[Any], what: str, given: Samples, microbatches: int, check: Check | None
) -> Array:
    """`given` as an array, if it is one for each microbatch and what the model takes."""
    if given is None or len(given) != microbatches:
        got = "none" if given is None else len(given)
        raise InputError(f"{what}: got {got}, expected one for each of {microbatches} microbatches")
    arrays: Array = xp.asarray(given)
    if np.issubdtype(arrays.dtype, np.floating):
        arrays = arrays.astype(dtype, copy=False)
    if check is not None:
        check(arrays)
    return arrays


def _checked(what: str, array: Message, dtype: np.dtype[Any], shape: Shape) -> Array:
    if array is None or tuple(array.shape) != shape or array.dtype != dtype:
        got = "none" if array is None else f"{array.dtype} {tuple(array.shape)}"
        raise InputError(f"{what}: got {got}, expected {dtype} {shape}")
    return array


def _lent(out: Message, dtype: np.dtype[Any], shape: Shape) -> Message:
    """`out`, if it is None or may be written as an array of that dtype and shape."""
    if out is not None and not _checked("out", out, dtype, shape).flags.c_contiguous:
        raise InputError("out: got a non-contiguous array, expected a C-contiguous one")
    return out
