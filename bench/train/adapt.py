"""Training whose links and ranks become slow on purpose, and that adapts if asked to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from lanterne.bench.output.units import format_time
from lanterne.pipeline.adapt.injection import InjectedEvent, Replay, SlowStage
from lanterne.pipeline.execute.execute import Measured, execute

if TYPE_CHECKING:
    from lanterne.collectives.communicator import Communicator
    from lanterne.failslow.mitigate.closed_loop import ClosedLoop
    from lanterne.pipeline.adapt.adapter import Adapter
    from lanterne.pipeline.adapt.decide import Change, Held
    from lanterne.pipeline.execute.stage import Stage
    from lanterne.pipeline.simulate.check_plan import CheckedPlan
    from lanterne.pipeline.train.state import TrainingState
    from lanterne.pipeline.train.trainer import Iteration, Trainer


class Disturbed:
    """A Training under events, whose Trainer has an ObservedPlane; it adapts if asked to.

    Args:
        trainer: it runs its iterations through this from now on; closed with this.
        events: about the links and ranks of every copy of the pipeline.
        adapts: whether to measure, plan anew and swap plans and paths.
    """

    def __init__(self, trainer: Trainer, events: Iterable[InjectedEvent], *, adapts: bool) -> None:
        self.trainer = trainer
        self.replay: Replay = Replay(events, trainer.plane.set_link, trainer.place)
        self.stages: dict[int, SlowStage] = self.replay.wrap(trainer.running)
        self.adapter: Adapter | None = None
        if adapts:
            # It loads the compiler.
            from lanterne.pipeline.adapt.adapter import Adapter

            self.adapter = Adapter.of(trainer)
        self._news = AdaptationNews(self.adapter)
        trainer.use(self._execute)

    # No ClosedLoop runs it.
    loop = None

    @property
    def iterations(self) -> int:
        return self.trainer.iterations

    def iteration(self) -> Iteration:
        """Train on the next batch, and adapt to what was measured."""
        self.begin()
        done = self.trainer.iteration()
        self.end()
        return done

    def begin(self) -> None:
        """The next iteration is about to begin."""
        down = self.replay.begin(self.trainer.iterations)
        if self.adapter:
            self.adapter.avoid([down] * len(self.trainer.plans))

    def end(self) -> list[Change]:
        """An iteration has ended: the Changes that come of it."""
        changes = self.adapter.agree() if self.adapter else []
        if self.adapter and changes:
            self.trainer.change(plans=self.adapter.plans)
        return changes

    def restore(self, state: TrainingState) -> None:
        """See Trainer.restore."""
        self.trainer.restore(state)
        if self.adapter:
            self.adapter.iteration = self.trainer.iterations

    def news(self) -> list[str]:
        """Lines about what came of it since the last call."""
        return self._news.news()

    def adapted(self) -> dict[str, list[dict[str, Any]]]:
        """For JSON: the Changes and the Helds."""
        return self._news.summary()

    def close(self) -> None:
        """Release the trainer, and what adapting holds."""
        try:
            if self.adapter:
                self.adapter.close()
        finally:
            self.trainer.close()

    def _execute(
        self, checked: CheckedPlan, stages: Mapping[int, Stage], comm: Communicator, *args: Any, **options: Any
    ) -> Measured:
        run = self.adapter.execute if self.adapter else execute
        return run(checked, self.stages, comm, *args, **options)


class AdaptationNews:
    """Changes by adapting, for people and for JSON.

    Args:
        source: an Adapter, or a ClosedLoop with its Adapters; None: nothing adapts.
    """

    def __init__(self, source: Adapter | ClosedLoop | None) -> None:
        self._source = source
        self._told = 0, 0

    def news(self) -> list[str]:
        """Return lines about the changes since the last call."""
        changes, held = self._known()
        (known, others), self._told = self._told, (len(changes), len(held))
        return [*map(told_held, held[others:]), *map(told, changes[known:])]

    def summary(self) -> dict[str, list[dict[str, Any]]]:
        """For JSON: the Changes and the Helds."""
        changes, held = self._known()
        return {"changes": [each._asdict() for each in changes], "held": [each._asdict() for each in held]}

    def _known(self) -> tuple[list[Change], list[Held]]:
        """The Changes and the Helds so far."""
        return (self._source.changes, self._source.held) if self._source is not None else ([], [])


def told(change: Change) -> str:
    """One line about a Change."""
    paths = ", ".join(f"{one}-{other}" for one, other in change.slow_links)
    return (
        f"# iteration {change.running_from + 1}: {_told_found(change)}: {change.scheduler or 'the same plan'}, "
        f"{f'delegates for {paths}' if paths else 'no delegates'}; predicted {format_time(change.predicted_s)}"
    )


def told_held(held: Held) -> str:
    """One line about a Held."""
    return (
        f"# iteration {held.noticed + 1}: {_told_found(held)}: not acted on before {held.needed} iterations in a row "
        f"show it; iterations vary by {format_time(held.varies_s)}, a change would save {format_time(held.gain_s)}"
    )


def _told_found(verdict: Change | Held) -> str:
    """What a Change or Held is about."""
    found = ", ".join(f"{name} {'slower' if sign > 0 else 'faster'}" for name, sign in verdict.findings.items())
    delays = ", ".join(f"{pair} {format_time(delay_s)}" for pair, delay_s in verdict.delays_s.items())
    return found.replace("calibrated slower", "undisturbed times measured") + (f" ({delays})" if delays else "")
