"""Which rank holds which stage, and the routes that microbatches take through the stages."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from lanterne.errors import InputError, one_of


@dataclass(frozen=True)
class Placement:
    """Stages on ranks.

    Stages are numbered along the route of a microbatch. With several routes (bidirectional: two) route r is the stages
    [r L, (r + 1) L), L = route_length, and microbatch m takes route m % num_routes: routes hold copies of the same
    model.

    Attributes:
        name: unidirectional, loop, wave, bidirectional, or custom.
        num_ranks: ranks of the pipeline.
        stage_to_rank: (num_stages,) ints.
        num_routes: routes, 1 or 2.
    """

    name: str
    num_ranks: int
    stage_to_rank: tuple[int, ...]
    num_routes: int = 1
    num_stages: int = field(init=False)
    route_length: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stage_to_rank", tuple(self.stage_to_rank))
        object.__setattr__(self, "num_stages", len(self.stage_to_rank))
        object.__setattr__(self, "route_length", self.num_stages // max(self.num_routes, 1))
        if self.num_routes < 1 or self.num_stages != self.route_length * self.num_routes or self.num_stages == 0:
            raise InputError(
                f"placement: got {self.num_stages} stages on {self.num_routes} routes, expected a positive multiple"
            )
        ranks = set(self.stage_to_rank)
        if ranks != set(range(self.num_ranks)):
            raise InputError(
                f"placement: got stages on ranks {sorted(ranks)}, expected each of 0 to {self.num_ranks - 1}"
            )

    def step(self, stage: int, count: int) -> int | None:
        """The stage `count` (0, 1 or -1) further along `stage`'s route; None beyond either end."""
        other = stage + count
        return other if other // self.route_length == stage // self.route_length and other >= 0 else None

    def route(self, stage: int) -> int:
        """The route that `stage` is on."""
        return stage // self.route_length

    def microbatches_of(self, stage: int, microbatches: int) -> range:
        """The microbatches out of `microbatches` that pass `stage`, as a range."""
        return range(self.route(stage), microbatches, self.num_routes)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages that `rank` holds, ascending."""
        return tuple(stage for stage, holder in enumerate(self.stage_to_rank) if holder == rank)

    def shares(self) -> tuple[int, ...]:
        """Per stage: into how many stages its route cuts the work of its rank; (num_stages,) ints."""
        held = [(self.route(stage), rank) for stage, rank in enumerate(self.stage_to_rank)]
        return tuple(held.count(key) for key in held)


# A placement, the name of one, or None for unidirectional.
PlacementLike: TypeAlias = Placement | str | None


def unidirectional(num_ranks: int) -> Placement:
    """Stage i on rank i."""
    return Placement("unidirectional", num_ranks, tuple(range(num_ranks)))


def loop(num_ranks: int, stages_per_rank: int = 2) -> Placement:
    """Around and around: stage i on rank i % num_ranks. Paper: Narayanan et al. 2021, interleaved schedule."""
    return Placement("loop", num_ranks, tuple(range(num_ranks)) * stages_per_rank)


def wave(num_ranks: int, stages_per_rank: int = 2) -> Placement:
    """Forth and back: with two stages per rank a V, its turn on the last rank.

    Paper: Qi et al. 2023 (zero bubble), section 6.
    """
    forth, back = list(range(num_ranks)), list(range(num_ranks - 1, -1, -1))
    stage_to_rank = (rank for leg in range(stages_per_rank) for rank in (back if leg % 2 else forth))
    return Placement("wave", num_ranks, tuple(stage_to_rank))


def bidirectional(num_ranks: int) -> Placement:
    """Two copies of the model in opposite directions: even microbatches go down the ranks, odd ones up.

    Paper: Li and Hoefler 2021 (Chimera).
    """
    return Placement("bidirectional", num_ranks, (*range(num_ranks), *range(num_ranks - 1, -1, -1)), num_routes=2)


PLACEMENTS: dict[str, Callable[..., Placement]] = {
    "unidirectional": unidirectional,
    "loop": loop,
    "wave": wave,
    "bidirectional": bidirectional,
}


def make_placement(name: str, num_ranks: int, stages_per_rank: int = 2) -> Placement:
    """The placement called `name`; `stages_per_rank` counts for loop and wave only.

    Raises:
        InputError: an unknown name, or fewer than one rank or stage per rank.
    """
    if name not in PLACEMENTS:
        raise InputError(f"placement: {one_of(name, PLACEMENTS)}")
    if num_ranks < 1 or stages_per_rank < 1:
        raise InputError(f"placement: got {num_ranks} ranks with {stages_per_rank} stages each, expected at least 1")
    return PLACEMENTS[name](num_ranks, stages_per_rank) if name in ("loop", "wave") else PLACEMENTS[name](num_ranks)


def as_placement(given: PlacementLike, num_ranks: int) -> Placement:
    """The placement that is `given`, for `num_ranks` ranks.

    Raises:
        InputError: an unknown name.
    """
    return given if isinstance(given, Placement) else make_placement(given or "unidirectional", num_ranks)
