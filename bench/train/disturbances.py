"""Makes Events come true on the ranks of a whole job: any rank, and the link of any two, whatever they are used for."""

from lanterne.pipeline.adapt.injection import SlowStage, conditions
from lanterne.transport.shaped import Link, ShapedTransport


class Disturbances:
    """One rank's.

    Args:
        comm: the Communicator of all ranks of the job, which Events count.
        events: Events.
        pace_s: what an action takes at least; ranks that share cores then compute as if they did not.

    Attributes: `transport`, what the work is to go over; `slowdown`, of this rank now; `links`, that are slow now.
    """

    def __init__(self, comm, events, pace_s=0.0):
        self.rank, self.events, self.pace_s = comm.rank, tuple(events), pace_s
        self.transport = ShapedTransport(comm.transport, {}, separate=True)
        self.slowdown, self.links, self._stages = 1.0, {}, {}

    def wrap(self, stages):
        """{stage: Stage} to run instead of `stages`, which they slow."""
        self._stages = {number: SlowStage(stage, self.pace_s) for number, stage in stages.items()}
        self._set()
        return self._stages

    def begin(self, iteration):
        """Set the conditions of `iteration`, which is about to begin; every rank calls it."""
        links, slowdowns, _ = conditions(self.events, iteration)
        for pair in {**self.links, **links}:
            self.transport.set_link(*pair, links.get(pair, Link()))
        self.links, self.slowdown = links, slowdowns.get(self.rank, 1.0)
        self._set()

    def _set(self):
        for stage in self._stages.values():
            stage.slowdown = self.slowdown
