"""When to do more about a slow job: each strategy once the time already lost equals what the strategy costs.

Nobody knows how long an incident will last. Renting (bearing it) until the rent paid equals the price of buying (the
strategy's overhead) is never more than twice as dear as knowing the duration would have been.

Paper: Wu et al. (GREYHOUND), section 5.1, algorithm 1, table 2; differs: strategies that a forecast says would not
help are passed over, and the end of the incident is part of the planner.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lanterne.errors import InputError


@dataclass(frozen=True)
class Strategy:
    """A way to meet an incident.

    Attributes: `overhead_s`: what applying it costs, once; `causes`: the root causes that it helps against.
    """

    name: str
    overhead_s: float
    causes: frozenset[str] = frozenset({"compute", "communication"})


IGNORE = Strategy("ignore", 0.0)


def paper_strategies(
    *, rebalance_s: float = 1.0, topology_s: float = 60.0, restart_s: float = 1800.0
) -> tuple[Strategy, ...]:
    """S1 to S4 with their overheads in seconds; S2 moves work between groups, which does not help a slow link."""
    return (
        IGNORE,
        Strategy("rebalance", rebalance_s, frozenset({"compute"})),
        Strategy("topology", topology_s),
        Strategy("restart", restart_s),
    )


class MitigationPlanner:
    """Walks through `strategies` by rising overhead while one incident lasts.

    Attributes: `lost_s`: seconds lost so far; `applied`: names of the strategies asked for, in order.
    """

    def __init__(self, strategies: Sequence[Strategy], cause: str) -> None:
        """Plan for an incident of root cause `cause` ("compute" or "communication").

        Raises:
            InputError: no strategy helps against `cause`, or an overhead is negative.
        """
        for strategy in strategies:
            if not strategy.overhead_s >= 0.0:
                raise InputError(f"strategy {strategy.name}: got overhead {strategy.overhead_s} s, expected 0 or more")
        self._candidates = sorted((s for s in strategies if cause in s.causes), key=lambda s: s.overhead_s)
        if not self._candidates:
            raise InputError(f"no strategy against cause {cause!r}; expected 'compute' or 'communication'")
        self._next = 0
        self.lost_s: float = 0.0
        self.applied: list[str] = []

    @property
    def next_cost_s(self) -> float:
        """The overhead of the strategy whose time comes next; inf when there is none left."""
        left = self._candidates[self._next :]
        return left[0].overhead_s if left else float("inf")

    def observe(
        self, iteration_s: float, healthy_s: float, forecast_s: Mapping[str, float] | None = None
    ) -> Strategy | None:
        """Take one slow iteration; return the Strategy to apply now, or None.

        Args:
            iteration_s, healthy_s: what the iteration took, and takes in health.
            forecast_s: strategy name -> iteration time expected under it; a strategy that would not gain 1 % is
            passed over.
        """
        self.lost_s += max(iteration_s - healthy_s, 0.0)
        while self._next < len(self._candidates):
            strategy = self._candidates[self._next]
            if self.lost_s < strategy.overhead_s:
                return None
            self._next += 1
            expected_s = (forecast_s or {}).get(strategy.name)
            if expected_s is None or expected_s < 0.99 * iteration_s or strategy.overhead_s == 0.0:
                self.applied.append(strategy.name)
                return strategy
        return None
