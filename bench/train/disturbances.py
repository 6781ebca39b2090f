"""Makes Events come true on the ranks of a whole job: any rank, and the link of any two, whatever they are used for."""

from collections.abc import Iterable, Mapping

from lanterne.collectives.communicator import Communicator
from lanterne.pipeline.adapt.injection import InjectedEvent, SlowStage, conditions
from lanterne.pipeline.execute.stage import Stage
from lanterne.transport.shaped import Link, ShapedTransport


class Disturbances:
    """One rank's.

    Args:
        comm: the Communicator of all ranks of the job, which Events count.
        events: of the whole run.
        pace_s: what an action takes at least; ranks that share cores then compute as if they did not.

    Attributes: `transport`, what the work is to go over; `slowdown`, of this rank now; `links`, that are slow now.
    """

    def __init__(self, comm: Communicator, events: Iterable[InjectedEvent], pace_s: float = 0.0) -> None:
        self.rank: int = comm.rank
        self.events: tuple[InjectedEvent, ...] = tuple(events)
        self.pace_s = pace_s
        self.transport: ShapedTransport = ShapedTransport(comm.transport, {}, separate=True)
        self.slowdown: float = 1.0
        self.links: dict[tuple[int, int], Link] = {}
        self._stages: dict[int, SlowStage] = {}

    def wrap(self, stages: Mapping[int, Stage]) -> dict[int, SlowStage]:
        """What to run instead of `stages`, slowed."""
        self._stages = {number: SlowStage(stage, self.pace_s) for number, stage in stages.items()}
        self._set()
        return self._stages

    def begin(self, iteration: int) -> None:
        """Set the conditions of `iteration`, which is about to begin; every rank calls it."""
        links, slowdowns, _ = conditions(self.events, iteration)
        for pair in {**self.links, **links}:
            self.transport.set_link(*pair, links.get(pair, Link()))
        self.links, self.slowdown = links, slowdowns.get(self.rank, 1.0)
        self._set()

    def _set(self) -> None:
        for stage in self._stages.values():
            stage.slowdown = self.slowdown
