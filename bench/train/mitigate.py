"""Training that a ClosedLoop watches and mitigates, on links and ranks that are slow on purpose or by themselves."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lanterne.bench.output.units import format_time
from lanterne.bench.train.adapt import AdaptationNews
from lanterne.bench.train.job import Setup
from lanterne.collectives.communicator import Communicator
from lanterne.failslow.mitigate.baseline import NOBODY
from lanterne.failslow.mitigate.closed_loop import ClosedLoop, observed
from lanterne.failslow.mitigate.decision import ControllerSettings
from lanterne.pipeline.adapt.injection import InjectedEvent, Replay
from lanterne.pipeline.adapt.suspect import Suspect
from lanterne.pipeline.planes.observed import ObservedPlane
from lanterne.pipeline.planes.plane_makers import adapting
from lanterne.pipeline.simulate.check_plan import CheckedPlan
from lanterne.pipeline.train.rank_layout import Layout
from lanterne.pipeline.train.state import TrainingState
from lanterne.pipeline.train.trainer import Iteration, Trainer
from lanterne.transport.shaped import Link, ShapedTransport


class Mitigated:
    """The iterations of `lanterne pipeline train --mitigate`.

    Args:
        comm: the Communicator of all ranks.
        setup: what is trained. plans, options: those of its trainer.
        events: about ranks of the job and links between any two.
        pace_s: what an action takes at least.
        state: URL of where rank 0 keeps what it knows; None for the job's store.
        acts: False: it only trains, and nothing is watched.
        adapts: see ClosedLoop.
        before: see ClosedLoop.
        prepare: gives what to train with of each Trainer that is made.
    """

    def __init__(
        self,
        comm: Communicator,
        setup: Setup,
        plans: Sequence[CheckedPlan],
        options: Mapping[str, Any],
        events: Iterable[InjectedEvent],
        pace_s: float = 0.0,
        *,
        acts: bool = True,
        adapts: bool = False,
        before: Mapping[int, float] = NOBODY,
        prepare: Callable[[Trainer], Trainer] = lambda trainer: trainer,
    ) -> None:
        self._transport = transport = ShapedTransport(comm.transport, {}, separate=True)
        self._plane: ObservedPlane | None = None
        # The last Trainer, and of those before it the most bytes held and those moved to the host.
        self._made: Trainer | None = None
        self._spilled = 0, 0
        self.replay: Replay = Replay(events, self._set_link, comm.rank, pace_s=pace_s)
        options = {**options, "plane": self._adapting if adapts else observed, "transport": transport}
        options.pop("layout", None)

        def make(comm: Communicator, plans: Sequence[CheckedPlan], layout: Layout) -> Trainer:
            self._keep_spilled()
            self._made = prepare(setup.trainer(comm, plans, layout=layout, **options))
            return self._made

        self.loop: ClosedLoop = ClosedLoop(
            comm, make, plans, setup.layout, settings=ControllerSettings(), transport=transport,
            wrap=self.replay.wrap, slowdown=lambda: self.replay.slowdown, acts=acts, adapts=adapts, before=before,
        )  # fmt: skip
        self._told = 0
        self._news = AdaptationNews(self.loop)

    def _adapting(self, pipeline: Communicator) -> ObservedPlane:
        """The data plane of a pipeline's ranks, which emulates its links by itself, as they are now."""
        self._plane, self._ranks = adapting(pipeline), pipeline.ranks
        for pair, link in self._transport.ends.links.items():
            self._set_link(*pair, link)
        return self._plane

    def _set_link(self, source: int, destination: int, link: Link) -> None:
        """Change the link between two ranks of the job."""
        self._transport.set_link(source, destination, link)
        if self._plane is not None and {source, destination} <= set(self._ranks):
            self._plane.set_link(self._ranks.index(source), self._ranks.index(destination), link)

    @property
    def trainer(self) -> Trainer | None:
        return self.loop.trainer

    @property
    def iterations(self) -> int:
        return self.loop.iterations

    def iteration(self) -> Iteration | None:
        """An Iteration; None on a rank that is out."""
        self.loop.avoid(self.replay.begin(self.loop.iterations))
        return self.loop.iteration()

    def restore(self, state: TrainingState) -> None:
        """See ClosedLoop.restore."""
        self.loop.restore(state)

    def news(self) -> list[str]:
        """Lines about what was done since the last call."""
        acted, self._told = self.loop.acted[self._told :], len(self.loop.acted)
        return [*map(told, acted), *self._news.news()]

    def summary(self) -> dict[str, Any]:
        """On rank 0, for JSON: incidents, decisions, what they took."""
        assert self.loop.controller is not None
        return self.loop.controller.state() | {"acted": self.loop.acted}

    def adapted(self) -> dict[str, list[dict[str, Any]]]:
        """For JSON: the Changes and the Helds."""
        return self._news.summary()

    @property
    def spilled_nbytes(self) -> tuple[int, int]:
        """The most bytes of activations that this rank held, and those that it moved to the host."""
        most, moved = self._made.spilled_nbytes if self._made is not None else (0, 0)
        return max(self._spilled[0], most), self._spilled[1] + moved

    def _keep_spilled(self) -> None:
        self._spilled = self.spilled_nbytes

    def close(self) -> None:
        """Release the trainer and all else."""
        self.loop.close()


def told(act: Mapping[str, Any]) -> str:
    """One line about what was done."""
    where = f"# iteration {act['iteration'] + 1}: "
    if act["kind"] == "report":
        return f"{where}{act['evidence']}"
    if act["kind"] == "validate":
        suspects, took = ", ".join(act["suspects"]), format_time(act["seconds"])
        return f"{where}suspects {suspects} ({act['evidence']}): examined in {took}"
    arrangement = act["arrangement"]
    counts = "+".join(map(str, arrangement["microbatches"]))
    ranks = "  ".join(" ".join("/".join(map(str, parts)) for parts in copy) for copy in arrangement["ranks"])
    what = f"{', '.join(act['suspects'])}: {act['strategy']}" if act["kind"] == "mitigate" else "well again: back"
    return (
        f"{where}{what}: ranks [{ranks}], microbatches {counts}, in {format_time(act['seconds'])}; "
        f"predicted {format_time(act['predicted_s'])} after {format_time(act['before_s'])}"
    )


def incidents_table(
    incidents: Iterable[Mapping[str, Any]], iterations: int
) -> tuple[list[tuple[str, str]], list[list[object]]]:
    """(columns, rows) of what a Controller blamed."""
    columns = [("what", ""), ("severity", ""), ("suspected", "iteration"), ("named", ""), ("over", ""), ("lasted", "")]
    rows: list[list[object]] = []
    for one in incidents:
        what = Suspect(one["what"])
        severity = f"{one['severity']:.2f}x" if what.is_rank else f"+{format_time(one['severity'])}"
        ended = one["ended"]
        lasted = (iterations if ended is None else ended) - one["suspected"]
        over = "not over" if ended is None else ended + 1
        rows.append([one["what"], severity, one["suspected"] + 1, one["named"] + 1, over, lasted])
    return columns, rows
