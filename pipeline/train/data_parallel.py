"""Copies of a pipeline, each with microbatches of its own: their gradients become one while the pipelines still run.

The gradients of a stage start on their way once its last W has ended (`start`), go on between the actions that the rank
still has to do (`progress`), and are waited for at the end (`step`). A copy's gradients are those of the mean over its
own microbatches; they count by its share of all microbatches, so copies may have different numbers of them.
"""

from collections.abc import Mapping

from lanterne.collectives.communicator import Communicator, core_of
from lanterne.collectives.execute.requests import CollectiveRequest
from lanterne.pipeline.model.stage_layers import LayerStage


class Copies:
    """The copies of one rank's stages.

    Args:
        comms: stage -> Communicator of the ranks that hold its copies; one for each stage, since copies may finish
            their stages in different orders. All of them list the ranks in the same order, and all ranks list the
            communicators of the same stages in one order, whatever the stages are called there.
        stages: stage -> LayerStage; with `sharded`, of vectors whose length is a multiple of the number of copies.
        share: the part of all microbatches that this copy has, 0 to 1.
        sharded: ZeRO-1: each copy keeps the optimizer's averages of only its part of the vectors, and steps that
            part: reduce-scatter, step, all-gather. False: all-reduce, and each steps all.

    Paper: weighted aggregation: GREYHOUND section 5.2, S2; ZeRO-1: Rajbhandari et al. 2020, section 5.1.
    """

    def __init__(
        self,
        comms: Mapping[int, Communicator],
        stages: Mapping[int, LayerStage],
        share: float,
        *,
        sharded: bool = False,
    ) -> None:
        self.comms = comms
        self.stages = stages
        self.share = share
        self.sharded = sharded
        self._requests: dict[int, CollectiveRequest] = {}

    def part(self, stage: int) -> slice:
        """The slice of stage's vectors whose averages this copy keeps."""
        if not self.sharded:
            return slice(0, len(self.stages[stage].parameters))
        comm = self.comms[stage]
        count = len(self.stages[stage].parameters) // comm.world_size
        return slice(comm.rank * count, (comm.rank + 1) * count)

    def start(self, stage: int) -> None:
        """The gradients of `stage` are complete here: send them on their way."""
        gradients, comm = self.stages[stage].gradients, self.comms[stage]
        if comm.world_size == 1:
            return
        gradients *= self.stages[stage].dtype.type(self.share)
        if self.sharded:
            self._requests[stage] = comm.start_reduce_scatter(gradients, gradients[self.part(stage)])
        else:
            self._requests[stage] = comm.start_all_reduce(gradients, gradients)

    def progress(self) -> None:
        """Move what is on its way."""
        for stage in self._requests:
            core_of(self.comms[stage]).progress()

    def wait(self) -> None:
        """Wait for the gradients of all stages, each of which was started. `step` does, stage by stage."""
        for stage, comm in self.comms.items():
            if comm.world_size > 1:
                self._requests[stage].wait()

    def step(self) -> None:
        """Wait for the gradients, then update the weights of all stages, each of which was started."""
        # In one order on all copies: who waits moves nothing but what it waits for.
        for stage in self.comms:
            if self.comms[stage].world_size > 1:
                self._requests.pop(stage).wait()
            self._step(stage)
        for stage in self.comms:
            if stage in self._requests:
                self._requests.pop(stage).wait()

    def update(self, number: int) -> None:
        """One step of what this copy answers for of a stage, with gradients that are there; no rank is told."""
        stage, own = self.stages[number], self.part(number)
        stage.optimizer.step(stage.parameters[own], stage.gradients[own])

    def _step(self, number: int) -> None:
        stage, comm = self.stages[number], self.comms[number]
        if not self.sharded or comm.world_size == 1:
            stage.step()
            return
        self.update(number)
        stage.gradients[...] = 0
        self._requests[number] = comm.start_all_gather(stage.parameters[self.part(number)], stage.parameters)
