"""The search of `best`: list rules by the hundred, then annealing from the best of them."""

import math
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from lanterne.pipeline.plan.costs import Floats, Ints, costs
from lanterne.pipeline.plan.placement import Placement
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.adaptra import adapted_warmups, initial_warmups, max_inflight, round_trip
from lanterne.pipeline.planners.annealing import anneal, score_words
from lanterne.pipeline.planners.growth.growing import Found, Growth
from lanterne.pipeline.planners.list_rules import DEEP, OLDEST, SHALLOW, list_words, rank_stages, rules
from lanterne.pipeline.planners.words import (
    NONE,
    Letters,
    has_parts,
    letters_of,
    plan_of,
    with_message_words,
    word_length,
    words_of,
)
from lanterne.pipeline.simulate.program import runs_of_a_row

# Actions simulated per unit of effort: by rules (which look at all ranks for each), and by the search.
RULE_ACTIONS, SEARCH_ACTIONS = 3e7, 7e7
# A move that is not simulated costs as much as a quarter of the 160 actions that take its time; measured.
MOVE_ACTIONS = 40
# With fewer moves than this, or than this share of the actions, the search is left out: it would change nothing.
FEWEST_MOVES, FEWEST_SHARE = 500, 0.1
# Rules tried whatever the effort; and the share of them where ranks hold several stages, which gain more by the search.
FEWEST_RULES, MANY_SHARE = 24, 0.15
# Moves that show how fast the search is, where its time is limited.
PACING_MOVES = 20
# The best words that searches begin from.
KEPT = 8
# Where ranks hold several stages, and at most this many microbatches, searches end far apart; measured.
LITTLE_MEMORY = 4
# There this share of the search grows words from few microbatches, from as many of each number of them.
GROWN_SHARE, GROWN = 0.5, 3
# Sampled latencies and durations in a robust plan.
SAMPLES = 32


class Heats(NamedTuple):
    """Temperature schedule: how searches share the moves, and how hot they begin, in mean durations.

    Attributes:
        short, hot: share of a short search, of which there is one from each of the best words; its heats in turn.
        long: (share, heat) of those that follow, from the best.
    """

    short: float
    hot: tuple[float, ...]
    long: tuple[tuple[float, float], ...]


ONE_STAGE = Heats(1 / 16, (0.2,), ((1 / 4, 0.2), (1 / 4, 0.05)))
# Where ranks hold several stages good words lie far apart.
MANY_STAGES = Heats(1 / 40, (0.2, 1.0), ((0.6, 1.0), (0.2, 0.2)))


def improve(
    plans: Sequence[Plan],
    least: tuple[float, Plan],
    problem: Problem,
    target: float,
    effort: float,
    seed: int,
    quantile: float | None,
    jitter: float,
    tell: Callable[[float], object],
    *,
    duration_jitter: float = 0.0,
    until_s: float = math.inf,
) -> tuple[Plan, float]:
    """Return (the best plan found from `plans` and by rules, its makespan; with a quantile, that of the samples).

    Args:
        plans: checked plans on one placement, at least one.
        least: the makespan of the best of them, latencies being as given, and that plan.
        target: the makespan at which to stop, latencies being as given.
        quantile: None to plan for latencies and durations as given; else over sampled ones, -1 for the mean.
        jitter, duration_jitter: as for `sampled`.
        tell: called with each better makespan.
        until_s: of time.monotonic(): when to end, about.
    """
    table = costs(problem, plans[0].placement)
    letters = letters_of(table)
    if quantile is not None:
        half_s = until_s if until_s == math.inf else (time.monotonic() + until_s) / 2
        plain, _ = improve(plans, least, problem, target, effort, seed, None, jitter, lambda _: None, until_s=half_s)
        plans, least = [*plans, plain], (math.inf, plain)
        letters, target = sampled(letters, jitter, duration_jitter, seed), 0.0
    search = _WordSearch(letters, quantile, target, seed, tell, until_s)
    for plan in plans:
        if not has_parts(plan):
            search.add(with_message_words(words_of(plan, letters), letters))
    search.add_rules(table.placement, problem, effort)
    search.anneal(table.placement, problem, effort)
    # Latencies as given are simulated exactly here and in `simulate`: so plans in pieces can be compared too.
    made, plan = least
    if search.found and search.makespan < made * (1 + 1e-12):
        return plan_of(search.found[0][1], table, "best"), search.makespan
    return plan, made


def sampled(letters: Letters, jitter: float, duration_jitter: float, seed: int) -> Letters:
    """Return `letters` with SAMPLES rows of latencies and durations, each gamma distributed around its own.

    Args:
        jitter: standard deviation of each link's latency, one for both ways, as a share of it.
        duration_jitter: the same of how long each action takes, each for itself.
    """
    drawn = np.random.default_rng(seed)
    if jitter:
        letters = letters._replace(latency=_sampled_latency(letters, jitter, drawn))
    if duration_jitter:
        # By run; messages take as long as ever.
        runs, num_letters = runs_of_a_row(letters.operations), len(letters.total)
        took = letters.took if letters.took.shape[1] > num_letters else np.repeat(letters.took, runs, axis=1)
        took = np.repeat(took, SAMPLES, axis=0)
        own = runs * int((letters.operations.lane < letters.num_ranks).sum())
        took[:, :own] *= drawn.gamma(1 / duration_jitter**2, duration_jitter**2, (SAMPLES, own))
        letters = letters._replace(took=took)
    return letters


def _sampled_latency(letters: Letters, jitter: float, drawn: np.random.Generator) -> Floats:
    lane, source, target, *_ = letters.operations
    sender = np.where(lane < letters.num_ranks, lane, lane[source])
    ends = sender, lane[target]
    pair = np.minimum(*ends) * len(letters.capacity) + np.maximum(*ends)
    _, link = np.unique(pair, return_inverse=True)
    factor = drawn.gamma(1 / jitter**2, jitter**2, (SAMPLES, link.max() + 1))
    # By `take`: factor[:, link] is laid out by columns, for which all loops would be compiled a second time.
    taken: Floats = letters.latency[0] * factor.take(link, axis=1)
    return taken


class _WordSearch:
    """The best words so far, (makespan, words) in ascending order."""

    def __init__(
        self,
        letters: Letters,
        quantile: float | None,
        target: float,
        seed: int,
        tell: Callable[[float], object],
        until_s: float = math.inf,
    ) -> None:
        self.until_s = until_s
        # How many moves of the compiled search go into a second: known after the first.
        self.moves_per_s = 0.0
        self.letters = letters
        self.samples = max(len(letters.latency), len(letters.took))
        self.quantile = quantile or 0.0
        self.target = target
        self.seed = seed
        self.tell = tell
        self.found: Found = []
        # A mean duration.
        duration = letters.operations.duration
        self.unit = float(duration[duration > 0].mean())
        self.actions = int(letters.total[letters.operations.lane < letters.num_ranks].sum())
        self.ranks = letters.num_ranks

    @property
    def makespan(self) -> float:
        return self.found[0][0] if self.found else math.inf

    def add(self, words: Ints) -> None:
        """Keep `words`, those of links included, if no others with their makespan are known."""
        _, span = score_words(words, self.letters, self.quantile)
        if span >= 1e300 or any(span == known for known, _ in self.found):
            return
        if span < self.makespan:
            self.tell(span)
        self.found = sorted([*self.found, (span, words)], key=lambda pair: pair[0])[:KEPT]

    def add_rules(self, placement: Placement, problem: Problem, effort: float) -> None:
        """Add the words of as many list rules as the effort allows."""
        most = max(int(effort * RULE_ACTIONS / (self.actions * (8 + self.ranks))), FEWEST_RULES)
        if placement.num_stages == placement.num_ranks:
            tried = rules(_leads(problem), most)
        else:
            leads = _leads_of_many(problem, placement)
            tried = rules(leads, int(most * MANY_SHARE), (DEEP, OLDEST, SHALLOW), _groups(problem, placement))
        ranks = rank_stages(problem, placement, self.letters)
        for rule in tried:
            if self.makespan <= self.target or self._is_late():
                return
            words = np.full((len(self.letters.capacity), word_length(self.letters)), NONE, np.int64)
            if list_words(self.letters, ranks, rule, words, self._most()):
                self.add(words)

    def _most(self) -> float:
        """Return what words may take to be kept: 1e300 where they are scored by more than one makespan.

        A little more is for rounding.
        """
        if self.samples > 1 or len(self.found) < KEPT:
            return 1e300
        return self.found[-1][0] * (1 + 1e-9)

    def anneal(self, placement: Placement, problem: Problem, effort: float) -> None:
        """Search shortly from each of the best words, then longer from the best of them.

        Where ranks hold several stages, `effort` times as many searches and not longer ones: they end far apart. Where
        they hold little memory besides, the later ones begin from grown words.
        """
        moves = int(effort * SEARCH_ACTIONS / (self.actions + MOVE_ACTIONS) / self.samples)
        if moves < max(FEWEST_MOVES, FEWEST_SHARE * self.actions) or not self.found:
            return
        has_many = placement.num_stages > placement.num_ranks
        heats, times = (MANY_STAGES, max(round(effort), 1)) if has_many else (ONE_STAGE, 1)
        growth = None
        if self.samples == 1 and has_little_memory(problem, placement):
            growth = self._growth(placement, problem, effort)
        if growth:
            times, moves = max(times, 2), int(moves * (1 - GROWN_SHARE))
        moves, begun = moves // times, self.found
        for again in range(times):
            if again == 1 and growth and self.makespan > self.target:
                begun = growth.grown(lambda letters: self._begun(letters, placement, problem, effort)) or begun
            self._anneal_from(begun, moves, heats, again * 16)

    def _anneal_from(self, begun: Sequence[tuple[float, Ints]], moves: int, heats: Heats, salt: int) -> None:
        """Search shortly from each of `begun`, then longer from the best of them."""
        found = [
            self._anneal(words, int(moves * heats.short), heats.hot[i % len(heats.hot)] * self.unit, salt + i)
            for i, (_, words) in enumerate(begun)
        ]
        for more, (share, hot) in enumerate(heats.long, salt + KEPT):
            nearest = min(found, key=lambda pair: pair[0])[1]
            found.append(self._anneal(nearest, int(moves * share), hot * self.unit, more))

    def _growth(self, placement: Placement, problem: Problem, effort: float) -> Growth | None:
        """Return the Growth; None where microbatches or moves are too few, or the time is limited."""
        growth = Growth(
            self.letters,
            held=least_held(problem, placement),
            kept=GROWN,
            actions=effort * SEARCH_ACTIONS * GROWN_SHARE,
            heat=MANY_STAGES.long[0][1] * self.unit,
            seed=self.seed,
        )
        can = growth.levels and growth.moves >= FEWEST_MOVES and self.until_s == math.inf
        return growth if can else None

    def _begun(self, letters: Letters, placement: Placement, problem: Problem, effort: float) -> Found:
        """Return words by rules for the letters of fewer microbatches."""
        few = _WordSearch(letters, None, 0.0, self.seed, lambda makespan: None)
        # Few actions take little time.
        few.add_rules(placement, problem, effort / 20)
        return few.found

    def _is_late(self) -> bool:
        return time.monotonic() > self.until_s

    def _anneal(self, words: Ints, moves: int, hot: float, salt: int) -> tuple[float, Ints]:
        """Search from `words` and return (makespan, words) found; inf and `words` if there is nothing to search."""
        if self.until_s < math.inf:
            if not self.moves_per_s:
                self.moves_per_s = self._speed(words)
            moves = min(moves, int(self.moves_per_s * (self.until_s - time.monotonic())))
        if self.makespan <= self.target or moves <= 0:
            return math.inf, words
        run = self.seed * 1024 + salt
        found, span, _ = anneal(words, self.letters, self.quantile, moves, hot, hot / 50, self.target, run)
        self.add(found)
        return span, found

    def _speed(self, words: Ints) -> float:
        """Return the moves per second, measured on a few."""
        unit = float(self.letters.operations.duration.max())
        took_s = 0.0
        for _ in range(2):  # The first may load the compiled loop.
            began_s = time.monotonic()
            anneal(words, self.letters, self.quantile, PACING_MOVES, unit, unit, -1.0, self.seed)
            took_s = time.monotonic() - began_s
        return PACING_MOVES / max(took_s, 1e-6)


def _leads(problem: Problem) -> list[Ints]:
    """Return lead vectors for the rules: the memory's limit, ADAPTRA's, and slacks that cover a share of the delays."""
    most = [max_inflight(problem, stage) for stage in range(problem.stages)]
    busy = [sum(times) for times in zip(problem.durations["F"], problem.durations["B"], strict=True)]
    found = [most, list(adapted_warmups(problem)), list(initial_warmups(problem))]
    for slack, share in ((1, 0.0), (2, 0.0), (1, 0.5), (1, 1.0), (2, 1.0)):
        leads = [1]
        for link in reversed(range(problem.stages - 1)):
            leads.append(leads[-1] + slack + math.ceil(share * round_trip(problem, link) / busy[link + 1] - 1e-9))
        found.append([min(lead, limit) for lead, limit in zip(reversed(leads), most, strict=True)])
    return [np.array(leads, np.int64) for leads in dict.fromkeys(map(tuple, found))]


def _leads_of_many(problem: Problem, placement: Placement) -> list[Ints]:
    """Return lead vectors for ranks of several stages: the memory's limit, and equal ones, up to covering links."""
    held = placement.num_stages // placement.num_ranks
    most = [max_inflight(problem, rank) * held // placement.num_routes for rank in range(problem.stages)]
    busy = max(sum(times) for times in zip(problem.durations["F"], problem.durations["B"], strict=True)) / held
    ways = placement.stage_to_rank[: placement.route_length]
    away = 2 * sum(
        problem.latency(*way) + problem.occupancy(*way, max(problem.message_nbytes)) for way in pairwise(ways)
    )
    even = [math.ceil(share * placement.num_stages + more * away / busy) for more in (0, 0.5, 1) for share in (1, 0.75)]
    even += [math.ceil(share * placement.num_stages) for share in (0.5, 1.5, 2)]
    found = [tuple(most), *(tuple(min(count, limit) for limit in most) for count in even)]
    return [np.array(leads, np.int64) for leads in dict.fromkeys(found)]


def _groups(problem: Problem, placement: Placement) -> list[int]:
    """Return how many microbatches may go together: as many as memory holds whole, half of them, or the ranks."""
    held = least_held(problem, placement)
    return sorted({size for size in (held, held // 2, placement.num_ranks) if 1 < size <= held}, reverse=True)


def has_little_memory(problem: Problem, placement: Placement) -> bool:
    """Return whether ranks hold several stages and few microbatches: searches end far apart there."""
    has_many = placement.num_stages > placement.num_ranks
    return has_many and least_held(problem, placement) <= LITTLE_MEMORY


def least_held(problem: Problem, placement: Placement) -> int:
    """Return how many microbatches of each route every rank can hold at once, whole."""
    return min(max_inflight(problem, rank) for rank in range(problem.stages)) // placement.num_routes
