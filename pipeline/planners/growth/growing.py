"""Plans for little memory: search well for a few microbatches, then repeat their period for all of them.

Good plans lie far apart there. A search of the whole seldom gets from one to another; one of a few microbatches
does. So words for the fewest that fill memory are searched, then those for one microbatch more, from their periods
repeated once, and so on; at last the periods go on for all microbatches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from lanterne.pipeline.plan.costs import Ints
from lanterne.pipeline.planners.annealing import anneal, orders_of, scratch, simulate_words
from lanterne.pipeline.planners.growth.periods import repeat_period
from lanterne.pipeline.planners.words import NONE, Letters, starts_of, word_length

# (makespan, words), ascending.
Found: TypeAlias = list[tuple[float, Ints]]
# Words to begin with for the letters of fewer microbatches.
Begin: TypeAlias = Callable[[Letters], Sequence[tuple[float, Ints]]]
# Periods of up to so many microbatches, or as many as memory holds.
LONGEST_PERIOD = 3


def shorter(letters: Letters, by: int) -> Letters:
    """Return `letters` with `by` fewer microbatches on each route."""
    return letters._replace(total=letters.total - by)


@dataclass(frozen=True)
class Growth:
    """Settings of the growth, and the words found by number of microbatches.

    Attributes:
        letters: of all microbatches.
        held: microbatches of a route that memory holds at once on each rank.
        kept: words of each number of microbatches.
        actions: how many are simulated, about.
        heat: of the searches at first, in units of time.
        seed: of the searches.
    """

    letters: Letters
    held: int
    kept: int
    actions: float
    heat: float
    seed: int
    _by_turns: dict[int, Found] = field(default_factory=dict)

    @property
    def turns(self) -> int:
        """Number of microbatches of a route."""
        return int(self.letters.total.max())

    @property
    def levels(self) -> range:
        """Numbers of microbatches that are searched: from those that fill memory, until there are whole periods."""
        fewest = self.held + 1
        return range(fewest, min(self.turns - 1, max(2 * fewest + 1, fewest + 4)) + 1)

    @property
    def moves(self) -> int:
        """Number of moves of each search."""
        sizes = [int(shorter(self.letters, self.turns - turns).total.sum()) for turns in self.levels]
        return int(self.actions / max(self.kept * sum(sizes), 1))

    def grown(self, begin: Begin) -> Found:
        """Return words for all microbatches; there may be none.

        Args:
            begin: called with letters of few microbatches: for the fewest, and where periods are too few.
        """
        for turns in self.levels:
            letters, found = shorter(self.letters, self.turns - turns), self._repeated(turns)
            if len(found) < self.kept:
                found = self._best([*found, *begin(letters)])
            searched = [self._searched(words, letters, turns * self.kept + i) for i, (_, words) in enumerate(found)]
            self._by_turns[turns] = self._best([*found, *searched])
        return self._repeated(self.turns)

    def _repeated(self, turns: int) -> Found:
        """Return words for `turns` microbatches, from those for fewer: the next ones, or, for all microbatches, any."""
        letters, found = shorter(self.letters, self.turns - turns), []
        for fewer, known in self._by_turns.items():
            for period in range(1, max(LONGEST_PERIOD, self.held) + 1):
                copies, rest = divmod(turns - fewer, period)
                if rest or (copies > 1 and turns < self.turns):
                    continue
                found += [self._longer(words, fewer, letters, period, copies) for _, words in known]
        return self._best(found)

    def _longer(self, words: Ints, turns: int, letters: Letters, period: int, copies: int) -> tuple[float, Ints]:
        own = shorter(self.letters, self.turns - turns)
        times, progress = scratch(own)
        simulate_words(own, orders_of(words), 0, times, progress)
        start = starts_of(words, own, times.begun)
        longer = np.full((len(words), word_length(letters)), NONE, np.int64)
        return repeat_period(words, start, letters, period, copies, longer), longer

    def _searched(self, words: Ints, letters: Letters, salt: int) -> tuple[float, Ints]:
        run = self.seed * 1024 + salt
        heats = self.heat, self.heat / 50
        found, span, _ = anneal(words, letters, 0.0, self.moves, *heats, 0.0, run)
        return span, found

    def _best(self, found: Sequence[tuple[float, Ints]]) -> Found:
        """Return the best words that can run, one for each makespan."""
        apart = {span: words for span, words in found if span < 1e300}
        return [(span, apart[span]) for span in sorted(apart)[: self.kept]]
