"""What `auto` knows of a group: alpha, beta and gamma, measured with the executor, and the choices made from them.

`lanterne.init()` measures, or takes what an earlier job measured on the same hosts (LANTERNE_CACHE, a folder; "off" for
none), while all ranks are there; so no call of the user's ever waits for a measurement, and a late rank does not spoil
it. Rank 0's answer is everybody's, so all ranks choose alike; groups have that of the communicator they were split
from. Threads (`lanterne.spawn`) go by THREADS. LANTERNE_ALGORITHM overrides: "ring" for every collective that has it,
or "all_reduce=ring,broadcast=chain". Every new choice is logged, with its reason, at level INFO.
"""

import logging
import os
from typing import NamedTuple

from lanterne.collectives.algorithms.catalogue import ALGORITHMS, Algorithm, best_num_chunks, find_algorithm
from lanterne.collectives.auto.learn import learn
from lanterne.collectives.auto.pacing import sustained
from lanterne.collectives.auto.predict import MIN_CHUNK_NBYTES, Factor, Prediction, candidates, corrected, predictions
from lanterne.collectives.auto.trials import TrialGroup
from lanterne.collectives.schedule.cost import CostModel
from lanterne.errors import InputError

log: logging.Logger = logging.getLogger("lanterne.collectives")

# A schedule of more ranks is priced in seconds; from there on the first of the registry that can run stands for auto.
MAX_PRICED_RANKS = 128
# Algorithms that differ by less are alike. Of those that were tried the model's favourite, which sends the fewest
# messages or bytes, does best among the disturbances of a program; of sizes too long to try the first in the registry,
# the ring, is the simplest for a network.
TIE = 1.02
# Of any collective.
NAMES = {name for _, name in ALGORITHMS}
# Threads of one process, roughly: what one measures there is mostly who held the interpreter.
THREADS = CostModel(30e-6, 1 / 5e9, 1 / 10e9, serial_messages=True)

# Ranks with a GPU each, over NCCL on fast links: for those that share one in a test, of which nothing can be measured.
GPUS = CostModel(15e-6, 1 / 150e9, 1 / 1e12)


class Choice(NamedTuple):
    """What `auto` stands for in one call: an algorithm, its num_chunks (None: its own), and why."""

    algorithm: str
    num_chunks: int | None
    reason: str


class Tuning:
    """The choices of one communicator.

    Args:
        communicator: the group; it measures with its own collectives.

    Attributes: `model`, a CostModel, None where there is none; `factors`, how far algorithms that were tried are off it
        (predict.Factor); `source`, "measured", "cache", "threads" or "none".
    """

    def __init__(self, communicator: TrialGroup):
        self._communicator = communicator
        self.adopt(None, "none")

    def adopt(self, model: CostModel | None, source: str, factors: tuple[Factor, ...] = ()) -> None:
        """Choose by `model` and `factors` from now on; call it alike on all ranks."""
        self._choices: dict[tuple[str, int], Choice] = {}
        self._chunk_counts: dict[tuple[str, int, str], int | None] = {}
        self.model = model
        self.source = source
        self.factors = factors

    def learn(self) -> None:
        """Choose by what is measured now, or by the cache. A collective call."""
        if self._communicator.world_size > 1:
            model, factors, source = learn(self._communicator)
            self.adopt(model, source, factors)
            log.info("cost model (%s): %s", self.source, self.model)

    def choose(self, collective: str, nbytes: int) -> Choice:
        """The Choice for `collective` on buffers of `nbytes`, the larger of a rank's two; the same on all ranks.

        Sizes are rounded up to a power of two, so that there are few choices to make.

        Raises:
            InputError: LANTERNE_ALGORITHM names an algorithm that does not exist or cannot be used.
        """
        size = 1 << max(0, nbytes - 1).bit_length()
        choice = self._choices.get((collective, size))
        if choice is None:
            choice = self._choices[collective, size] = self._make(collective, size)
            log.info("%s of %d bytes: %s, %s", collective, nbytes, choice.algorithm, choice.reason)
        return choice

    def explain(self, collective: str, nbytes: int) -> list[Prediction]:
        """What every candidate is predicted to take, cheapest first.

        Raises:
            InputError: there is no model yet.
        """
        if self.model is None:
            raise InputError("explain: got a communicator without a cost model; call tuning.learn() on all its ranks")
        rows = predictions(collective, self._communicator.world_size, nbytes, self.model)
        return corrected(rows, self.factors, collective, nbytes)

    def num_chunks(self, collective: str, algorithm: str, nbytes: int) -> int | None:
        """The chunk count for `algorithm` on buffers of `nbytes`; None: its own choice. The same on all ranks."""
        size = 1 << max(0, nbytes - 1).bit_length()
        key = collective, size, algorithm
        if key not in self._chunk_counts:
            line = find_algorithm(collective, algorithm)
            world_size, count = self._communicator.world_size, None
            if line.late and self.model is not None and not line.refuses(world_size):
                count = late_num_chunks(line, world_size, size, self.model)
            self._chunk_counts[key] = count
        return self._chunk_counts[key]

    def _make(self, collective: str, nbytes: int) -> Choice:
        world_size = self._communicator.world_size
        named = override(collective, world_size)
        if named is not None:
            return Choice(named, None, "named by LANTERNE_ALGORITHM")
        lines = candidates(collective, world_size)
        if len(lines) == 1 or world_size == 1:
            return Choice(lines[0].name, None, "the only one")
        if self.model is None or world_size > MAX_PRICED_RANKS:
            return Choice(lines[0].name, None, "not measured")
        predicted = predictions(collective, world_size, nbytes, self.model)
        rows = corrected(predicted, self.factors, collective, nbytes)
        near = {row.algorithm: row for row in rows if row.time_s <= TIE * rows[0].time_s}
        if self.factors and nbytes > max(row.nbytes for row in self.factors):
            names = [line.name for line in lines]
        else:
            names = [row.algorithm for row in predicted]
        algorithm, chunks, time_s = next(near[name] for name in names if name in near)
        return Choice(algorithm, chunks, f"predicted to take {time_s * 1e6:.1f} us ({self.source} model)")


def late_num_chunks(line: Algorithm, world_size: int, nbytes: int, model: CostModel) -> int | None:
    """The chunk count of the late-rank algorithm `line`, whose messages are posted ahead."""
    return best_num_chunks(line, world_size, nbytes, sustained(model), MIN_CHUNK_NBYTES)


def override(collective: str, world_size: int) -> str | None:
    """The algorithm that LANTERNE_ALGORITHM names for `collective`, or None.

    Raises:
        InputError: it names one that does not exist for any collective, or cannot be used with so many ranks.
    """
    for part in filter(None, os.environ.get("LANTERNE_ALGORITHM", "").split(",")):
        target, _, name = part.strip().rpartition("=")
        if not target and name in NAMES and (collective, name) not in ALGORITHMS:
            continue
        try:
            line = find_algorithm(target or collective, name)
        except InputError as error:
            raise InputError(f"LANTERNE_ALGORITHM: {error}") from None
        if line.collective != collective:
            continue
        if refusal := line.refuses(world_size):
            raise InputError(f"LANTERNE_ALGORITHM: got {name} for {collective}, which {refusal}")
        return name
    return None
