"""What the commands that train share: the options of a model and its parallelism, and the trainer they describe."""

from __future__ import annotations

import argparse
import hashlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from lanterne.bench.output.report import read_json
from lanterne.bench.output.units import whole
from lanterne.bench.pipeline.input import of_file
from lanterne.errors import InputError, LanterneError, Unavailable

if TYPE_CHECKING:
    from lanterne.collectives.communicator import Communicator
    from lanterne.pipeline.model.stage_layers import StageModel
    from lanterne.pipeline.model.text import Batches, Text
    from lanterne.pipeline.simulate.check_plan import CheckedPlan
    from lanterne.pipeline.train.rank_layout import Layout
    from lanterne.pipeline.train.trainer import Iteration, Trainer

# What the losses of many ranks and of one may differ by, relative, over 50 iterations.
TOLERANCES = {"float32": 1e-5, "float64": 1e-10}
GPT = "gpt"


@dataclass(frozen=True)
class TrainSettings:
    """What a checkpoint is of: all that the losses depend on."""

    model: str
    vocabulary: int
    length: int
    width: int
    heads: int
    blocks: int
    rows: int
    microbatches: int
    dtype: str
    learning_rate: float
    seed: int
    text_sha256: str


def add_model_arguments(parser: argparse.ArgumentParser, microbatches: str) -> None:
    """The options of the model and of its parallelism; `microbatches` is the default."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        default=GPT,
        metavar="NAME",
        help="gpt (default), or MODULE:FUNCTION of one's own: called with vocabulary, length, width, heads, blocks and "
        "rows, it returns a StageModel, such as torch_model makes of PyTorch modules",
    )
    for name, default, what in (
        ("blocks", 4, "of attention and MLP"),
        ("width", 64, "numbers per token"),
        ("heads", 4, "of attention"),
        ("length", 64, "tokens of a row"),
        ("rows", 4, "of a microbatch"),
    ):
        group.add_argument(f"--{name}", type=whole(1), default=default, metavar="N", help=f"{what} (default {default})")
    group.add_argument("--dtype", default="float32", choices=tuple(TOLERANCES))
    group.add_argument("--learning-rate", type=float, default=1e-3, metavar="R", help="of Adam (default 1e-3)")
    group = parser.add_argument_group("parallelism", "What is not given follows from the number of ranks.")
    group.add_argument("--stages", type=whole(1), metavar="P", help="ranks of a pipeline")
    group.add_argument("--data-parallel", type=whole(1), metavar="D", help="copies of the pipeline")
    group.add_argument("--tp", type=whole(1), default=1, metavar="T", help="ranks that share each stage (default 1)")
    group.add_argument("--zero1", action="store_true", help="each copy keeps a part of the optimizer's averages")
    group.add_argument(
        "--microbatches",
        default=microbatches,
        metavar="M[,M...]",
        help=f"of an iteration, in all or each copy (default {microbatches})",
    )
    group.add_argument(
        "--scheduler", default="zb_h1", metavar="NAME", help="see `lanterne pipeline plan` (default zb_h1)"
    )
    group.add_argument("--plan", metavar="FILE", help="instead: what `lanterne pipeline plan --json FILE` wrote")
    group.add_argument(
        "--deterministic", action="store_true", help="nobody finds out who is late: repeated bit for bit"
    )


@dataclass(frozen=True, eq=False)
class Setup:
    """What a run is made of, the same on every rank."""

    settings: TrainSettings
    batches: Batches
    layout: Layout
    microbatches: tuple[int, ...]

    def model(self, tensor: Communicator | None = None) -> StageModel:
        """The StageModel, shared with the ranks of `tensor`."""
        from lanterne.pipeline.model.stage_gpt import gpt

        own = self.settings
        shape = own.vocabulary, own.length, own.width, own.heads, own.blocks, own.rows
        return gpt(*shape, tensor) if own.model == GPT else own_model(own.model, *shape)

    def trainer(self, comm: Communicator, plans: Sequence[CheckedPlan], **options: Any) -> Trainer:
        """A Trainer of it; `options` are more of the Trainer's."""
        from lanterne.pipeline.train.adam import Adam
        from lanterne.pipeline.train.trainer import Trainer

        own = self.settings
        optimizer = partial(Adam, own.learning_rate)
        return Trainer(
            comm, self.model, self.batches, plans, optimizer=optimizer, dtype=own.dtype, seed=own.seed, **options
        )


def own_model(name: str, *shape: int) -> StageModel:
    """The StageModel that a function of the user's makes, MODULE:FUNCTION, found from the working directory too.

    Raises:
        InputError: no such function, it takes something else, or what it returns is no StageModel.
        Unavailable: it imports a library that is missing.
    """
    from lanterne.collectives.algorithms.outside import import_outside
    from lanterne.pipeline.model.stage_layers import StageModel

    module, colon, function = name.partition(":")
    if not colon:
        raise InputError(f"--model: got {name!r}, expected {GPT} or MODULE:FUNCTION")
    try:
        make = getattr(import_outside(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        if isinstance(error, ModuleNotFoundError) and not f"{module}.".startswith(f"{error.name}."):
            raise Unavailable(f"--model: {name} imports what is not here: {error}") from error
        raise InputError(f"--model: got {name!r}, expected MODULE:FUNCTION: {error}") from error
    try:
        inspect.signature(make).bind(*shape)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"--model: {name}: {error}, expected a function of vocabulary, length, width, heads, blocks and rows"
        ) from error
    try:
        made = make(*shape)
    except ImportError as error:
        raise Unavailable(f"--model: {name}: {error}") from error
    if not isinstance(made, StageModel):
        raise InputError(f"--model: {name} returned a {type(made).__name__}, expected a StageModel")
    return made


def make_setup(args: argparse.Namespace, world_size: int, text: Text) -> Setup:
    """The Setup that the options describe, for a Text.

    Raises:
        InputError: they do not fit each other, the ranks, or the text.
    """
    from lanterne.pipeline.model.text import Batches
    from lanterne.pipeline.train.rank_layout import make_layout

    copies = args.data_parallel or (None if args.stages else 1)
    layout = make_layout(world_size, args.stages, copies, args.tp)
    microbatches = _distribution(args.microbatches, layout.shape[0])
    batches = Batches(text.tokens, sum(microbatches), args.rows, args.length, args.seed)
    names = ("model", "length", "width", "heads", "blocks", "rows", "dtype", "learning_rate", "seed")
    settings = TrainSettings(
        vocabulary=text.vocabulary,
        microbatches=sum(microbatches),
        text_sha256=hashlib.sha256(text.tokens.tobytes()).hexdigest(),
        **{name: getattr(args, name) for name in names},
    )
    setup = Setup(settings, batches, layout, microbatches)
    if args.tp > 1 and args.model != GPT:
        raise InputError(f"--tp: got {args.tp} beside --model {args.model}, expected 1: its layers have no parts")
    model = setup.model()
    model.starts(layout.shape[1])
    if args.heads % args.tp:
        raise InputError(f"--tp: got {args.tp} for {args.heads} heads, expected a divisor")
    return setup


def _distribution(text: str, copies: int) -> tuple[int, ...]:
    """(copies,) ints: the microbatches of each."""
    counts = text.split(",")
    numbers = all(count.isascii() and count.isdecimal() and int(count) for count in counts)
    if not numbers or len(counts) not in (1, copies):
        raise InputError(f"--microbatches: got {text!r}, expected one number in all or one for each of {copies} copies")
    if len(counts) > 1:
        return tuple(map(int, counts))
    total = int(text)
    if total < copies:
        raise InputError(f"--microbatches: got {total}, expected at least one for each of {copies} copies")
    return tuple(total // copies + (copy < total % copies) for copy in range(copies))


def planned(
    comm: Communicator, setup: Setup, args: argparse.Namespace
) -> tuple[tuple[CheckedPlan, ...], tuple[int, ...]]:
    """(a CheckedPlan per copy, the layers that stages begin with): rank 0 times the layers and plans, all check."""
    import numpy as np

    from lanterne.pipeline.adapt.agreement import PLANNING_S, from_first
    from lanterne.pipeline.plan.plan import Plan
    from lanterne.pipeline.plan.problem import Problem
    from lanterne.pipeline.planners.layer_times import layer_times_s
    from lanterne.pipeline.planners.partition import partition_layers
    from lanterne.pipeline.simulate.check_plan import check
    from lanterne.pipeline.train.trainer import plans

    places = setup.layout.shape[1]

    def make() -> list[Any]:
        times_s = layer_times_s(setup.model(), np.dtype(setup.settings.dtype))
        cut = partition_layers(times_s.sum(axis=1), [1.0] * places)
        forward, backward_input, backward_weight = (cut.stage_sums(column.tolist()) for column in times_s.T)
        problem = Problem(places, max(setup.microbatches), forward, backward_input, backward_weight)
        if args.plan:
            document = read_json(args.plan)
            with of_file(args.plan):
                found = [Plan.from_dict(document)] * len(setup.microbatches)
        else:
            found = [checked.plan for checked in plans(problem, args.scheduler, setup.microbatches)]
        num_stages = found[0].placement.route_length
        starts = partition_layers(times_s.sum(axis=1), [1.0] * num_stages).starts
        return [problem.to_dict(), [one.to_dict() for one in found], starts]

    problem, documents, starts = from_first(comm, make, PLANNING_S)
    made = []
    for document, count in zip(documents, setup.microbatches, strict=True):
        made.append(check(Plan.from_dict(document), Problem.from_dict(problem | {"microbatches": count})))
    return tuple(made), tuple(starts)


def check_finite(done: Iteration, *, tells: bool = True) -> None:
    """Raise unless the losses of an Iteration are finite, before they are compared, or a checkpoint is replaced.

    All ranks have the same losses and raise alike; the command line shows it of those that are to tell.
    """
    import numpy as np

    if not np.isfinite(done.losses).all():
        error = LanterneError(
            f"train: got a loss of {done.loss} in iteration {done.number + 1}, expected a finite one: "
            "the learning rate may be too high"
        )
        error.told = not tells
        raise error
