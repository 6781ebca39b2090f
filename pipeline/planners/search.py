"""The compiled part of `best`: list rules by the hundred, then annealing from the best of them."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from lanterne.pipeline.plan.costs import Floats, Ints, costs
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.adaptra import adapted_warmups, initial_warmups, max_inflight, round_trip
from lanterne.pipeline.planners.annealing import anneal, score
from lanterne.pipeline.planners.list_rules import list_words, rules
from lanterne.pipeline.planners.words import NONE, Letters, has_parts, letters_of, plan_of, word_length, words_of
from lanterne.pipeline.simulate.simulate import simulate

# Actions simulated per unit of effort: by rules (which look at all ranks for each), and by the search.
RULE_ACTIONS, SEARCH_ACTIONS = 3e7, 7e7
# With fewer moves than this, or than this share of the actions, the search is left out: it would change nothing.
FEWEST_MOVES, FEWEST_SHARE = 500, 0.1
FEWEST_RULES = 24
# Sampled latencies of every link in a robust plan.
SAMPLES = 32


def improve(
    plans: Sequence[Plan],
    problem: Problem,
    target: float,
    effort: float,
    seed: int,
    quantile: float | None,
    jitter: float,
    tell: Callable[[float], object],
) -> tuple[Plan, float]:
    """(the best plan found from `plans` and by rules, its makespan or, with a quantile, that of the samples).

    Args:
        plans: checked plans on one placement, at least one.
        target: the makespan at which to stop, latencies being as given.
        quantile: None to plan for the latencies as given; else over sampled ones, -1 for the mean.
        tell: called with each better makespan.
    """
    table = costs(problem, plans[0].placement)
    letters = letters_of(table)
    if quantile is not None:
        plans = [*plans, improve(plans, problem, target, effort, seed, None, jitter, lambda found: None)[0]]
        letters, target = sampled(letters, jitter, seed), 0.0
    search = _WordSearch(letters, quantile, target, seed, tell)
    # Latencies as given are simulated exactly here and in `simulate`: so plans in pieces can be compared too.
    pieces = [(simulate(plan, problem).makespan, plan) for plan in plans] if quantile is None else []
    for plan in plans:
        if not has_parts(plan):
            search.add(words_of(plan, letters))
    if table.placement.name == "unidirectional":
        search.add_rules(_leads(problem), effort)
    search.anneal(effort)
    made, plan = min(pieces, key=lambda pair: pair[0], default=(math.inf, plans[-1]))
    if search.found and search.makespan < made * (1 + 1e-12):
        return plan_of(search.found[0][1], table, "best"), search.makespan
    return plan, made


def sampled(letters: Letters, jitter: float, seed: int, samples: int = SAMPLES) -> Letters:
    """`letters` with `samples` rows of latencies: each link's, one for both ways, is gamma distributed around its own.

    Args:
        jitter: standard deviation as a share of the mean.
    """
    if jitter == 0:
        return letters
    ends = letters.rank, letters.rank[letters.target]
    pair = np.minimum(*ends) * len(letters.capacity) + np.maximum(*ends)
    _, link = np.unique(pair, return_inverse=True)
    factor = np.random.default_rng(seed).gamma(1 / jitter**2, jitter**2, (samples, link.max() + 1))
    # By `take`: factor[:, link] is laid out by columns, for which all loops would be compiled a second time.
    return letters._replace(latency=letters.latency[0] * factor.take(link, axis=1))


class _WordSearch:
    """The best words so far, (makespan, words) in ascending order."""

    def __init__(
        self, letters: Letters, quantile: float | None, target: float, seed: int, tell: Callable[[float], object]
    ) -> None:
        self.letters = letters
        self.quantile = quantile or 0.0
        self.target = target
        self.seed = seed
        self.tell = tell
        self.found: list[tuple[float, Ints]] = []
        self.actions = int(letters.total.sum())
        self.ranks = len(letters.capacity)
        shape = self.ranks, word_length(letters)
        arrival = np.empty((len(letters.rank), int(letters.total.max())))
        self.scratch: tuple[Floats, Floats, Floats] = (arrival, np.zeros(shape), np.zeros(shape))

    @property
    def makespan(self) -> float:
        return self.found[0][0] if self.found else math.inf

    def add(self, words: Ints) -> None:
        """Keep `words` if no others with their makespan are known."""
        _, span = score(words, self.letters, self.quantile, *self.scratch)
        if span >= 1e300 or any(span == known for known, _ in self.found):
            return
        if span < self.makespan:
            self.tell(span)
        self.found = sorted([*self.found, (span, words)], key=lambda pair: pair[0])[:8]

    def add_rules(self, leads: Sequence[Ints], effort: float) -> None:
        """The words of as many list rules as the effort allows."""
        most = max(int(effort * RULE_ACTIONS / (self.actions * (8 + self.ranks))), FEWEST_RULES)
        for rule in rules(leads, most):
            if self.makespan <= self.target:
                return
            words = np.full(self.scratch[1].shape, NONE, np.int64)
            if list_words(self.letters, rule, words):
                self.add(words)

    def anneal(self, effort: float) -> None:
        """Short searches from each of the best words, then longer ones from the best of them."""
        moves = int(effort * SEARCH_ACTIONS / self.actions / self.letters.latency.shape[0])
        if moves < max(FEWEST_MOVES, FEWEST_SHARE * self.actions) or not self.found:
            return
        unit = float(self.letters.duration[self.letters.duration > 0].mean())
        for i, (_, words) in enumerate(self.found):
            self._anneal(words, moves // 16, 0.2 * unit, i)
        self._anneal(self.found[0][1], moves // 4, 0.2 * unit, 8)
        self._anneal(self.found[0][1], moves // 4, 0.05 * unit, 9)

    def _anneal(self, words: Ints, moves: int, hot: float, salt: int) -> None:
        if self.makespan > self.target:
            run = self.seed * 16 + salt
            self.add(anneal(words, self.letters, self.quantile, moves, hot, hot / 50, self.target, run)[0])


def _leads(problem: Problem) -> list[Ints]:
    """Lead vectors for the rules: what memory allows, ADAPTRA's, and slacks that cover a share of the links' delays."""
    most = [max_inflight(problem, stage) for stage in range(problem.stages)]
    busy = [sum(times) for times in zip(problem.durations["F"], problem.durations["B"], strict=True)]
    found = [most, list(adapted_warmups(problem)), list(initial_warmups(problem))]
    for slack, share in ((1, 0.0), (2, 0.0), (1, 0.5), (1, 1.0), (2, 1.0)):
        leads = [1]
        for link in reversed(range(problem.stages - 1)):
            leads.append(leads[-1] + slack + math.ceil(share * round_trip(problem, link) / busy[link + 1] - 1e-9))
        found.append([min(lead, limit) for lead, limit in zip(reversed(leads), most, strict=True)])
    return [np.array(leads, np.int64) for leads in dict.fromkeys(map(tuple, found))]
