"""A training job as `pipeline calibrate` reads it: a run for each set of slow links, beside iterations without."""

import statistics
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from lanterne.bench.pipeline.recording import about_run, check_recordable
from lanterne.errors import InputError
from lanterne.pipeline.adapt.injection import InjectedEvent, conditions
from lanterne.pipeline.execute.measured import gather
from lanterne.pipeline.train.trainer import Iteration, Trainer

# Iterations that do not count: the first of the job, and of each spell.
FIRST, SETTLING = 2, 1
# {(source, destination): ms}, of the links that are slow.
Delays = tuple[tuple[tuple[int, int], float], ...]


class RunRecorder:
    """Notes the iterations of a Trainer; every rank calls `note` after each.

    Args:
        policy, delegates: as `calibrate` has them.
    """

    def __init__(self, trainer: Trainer, events: Sequence[InjectedEvent], policy: str, delegates: int) -> None:
        check_recordable(trainer.plans[0].plan)
        if any(event.rank is not None or event.down or event.bandwidth_bytes_per_s for event in events):
            raise InputError("--record: got a slow rank, a bandwidth or a dead link, expected latencies of links alone")
        self._trainer = trainer
        self._events = events
        self._about = policy, delegates
        # Of each iteration that counts: what links were slow, how long it took, how long its actions did, ms.
        self._noted: list[tuple[Delays, float, np.ndarray[Any, np.dtype[np.float64]]]] = []
        self._settled = -FIRST
        self._before: Delays = ()

    def note(self, done: Iteration) -> None:
        """An iteration has ended."""
        checked = self._trainer.plans[self._trainer.copy]
        columns = gather(done.measured, checked, self._trainer.pipeline)
        delays = self._delays(done.number)
        self._settled = self._settled + 1 if delays == self._before else -SETTLING + 1
        self._before = delays
        if self._settled > 0:
            makespan_s = float(columns["end_s"].max() - columns["start_s"].min())
            self._noted.append((delays, 1e3 * makespan_s, 1e3 * (columns["end_s"] - columns["start_s"])))

    def runs(self) -> list[dict[str, Any]]:
        """The runs, one per set of slow links; one of links that are all well where none was slow.

        Raises:
            InputError: no iteration without slow links, or none that counts.
        """
        plan, stage = self._trainer.plans[0].plan, self._trainer.stages[0]
        healthy = [(took, each) for delays, took, each in self._noted if not delays]
        if not healthy:
            raise InputError("--record: got no iterations without slow links, expected some that count before them")
        iterations_ms = [took for took, _ in healthy]
        sent = stage.output_shape or (0,)
        nbytes = prod(sent) * stage.dtype.itemsize
        about = about_run(plan, *self._about, nbytes, np.median([each for _, each in healthy], axis=0), iterations_ms)
        spells = [delays for delays in dict.fromkeys(delays for delays, _, _ in self._noted) if delays] or [()]
        return [
            about
            | {
                "id": f"train/{plan.scheduler}/{number}",
                "delayed_sends": [{"src": src, "dst": dst, "ms": late} for (src, dst), late in delays],
                "slow_ms": statistics.median(took for known, took, _ in self._noted if known == delays),
            }
            for number, delays in enumerate(spells)
        ]

    def _delays(self, iteration: int) -> Delays:
        links, _, _ = conditions(self._events, iteration)
        return tuple(sorted((pair, 1e3 * link.latency_s) for pair, link in links.items()))
