"""Finds fewer events and calls that go wrong in the same way."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from evaluation.simulation.growing import run as run_growing
from evaluation.simulation.scenario import Scenario
from evaluation.simulation.world import run


def kind_of(problem: str) -> str:
    """Which invariant a line of Outcome.problems is about."""
    return problem.partition(":")[0]


def fails_alike(kinds: frozenset[str]) -> Callable[[Scenario], bool]:
    """Whether a scenario breaks one of the invariants `kinds`."""
    return lambda scenario: not kinds.isdisjoint(map(kind_of, run(scenario).problems))


def shrink(scenario: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    """The smallest scenario found that `fails`, from one that does: without events, calls and ranks that it can miss.

    Cost: a run for each event, call and rank, some times.
    """
    smaller = True
    while smaller:
        smaller = False
        for candidate in _candidates(scenario):
            if fails(candidate):
                scenario, smaller = candidate, True
                break
    return scenario


def shrink_growing(seed: int, kinds: frozenset[str]) -> frozenset[str]:
    """The names of events that a job of growing.py can miss, and break one of the invariants `kinds` all the same.

    Cost: a run for each event, some times.
    """
    without: frozenset[str] = frozenset()
    left = list(run_growing(seed).events)
    while left:
        candidate = without | {left.pop()}
        outcome = run_growing(seed, without=candidate)
        if not kinds.isdisjoint(map(kind_of, outcome.problems)):
            without, left = candidate, [each for each in outcome.events if each in left]
    return without


def _candidates(scenario: Scenario) -> Iterator[Scenario]:
    """Scenarios with a little less, what helps most first."""
    for index in range(len(scenario.events)):
        yield replace(scenario, events=scenario.events[:index] + scenario.events[index + 1 :])
    for index in range(len(scenario.calls)):
        if len(scenario.calls) > 1:
            yield replace(scenario, calls=scenario.calls[:index] + scenario.calls[index + 1 :])
    used = max((max(event.rank, event.other) for event in scenario.events), default=1)
    if scenario.ranks > max(2, used + 1):
        yield replace(scenario, ranks=scenario.ranks - 1)
    for index, (kind, count) in enumerate(scenario.calls):
        if count > 1:
            yield replace(scenario, calls=(*scenario.calls[:index], (kind, count // 2), *scenario.calls[index + 1 :]))
