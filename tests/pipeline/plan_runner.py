"""Runs plans on stages of one process, an action at a time: what executors are compared with."""

import numpy as np

from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.simulate.check_plan import check
from lanterne.pipeline.simulate.simulate import simulate


def run_plan(plan, stages, inputs, targets, problem=None, after=None):
    """One iteration of `plan`; returns the losses by microbatch. Every output goes into a buffer lent for it alone,
    which is overwritten once what is in it has been sent. after(column) is called after each action, and in a BW
    between its B and its W too.
    """
    problem = problem or Problem(plan.placement.num_ranks, plan.microbatches, 1, 1, 1)
    check(plan, problem, memory=False)
    for stage in stages:
        stage.begin(plan.microbatches, inputs, targets)
    sent = {}
    even = Problem(plan.placement.num_ranks, plan.microbatches, 1, 1, 1)
    order = np.argsort(simulate(plan, even).start, kind="stable").tolist()
    actions = [action for rank in plan.ranks for action in rank]
    for column in order:
        perform(actions[column], plan.placement, stages, sent, lambda column=column: after and after(column))
    assert not sent, "messages were left"
    share_gradients(plan.placement, stages)
    for number, stage in enumerate(stages):
        assert stage.nbytes_held == 0, number
        stage.step()
    return [loss for _, loss in sorted({m: x for stage in stages for m, x in stage.losses.items()}.items())]


def perform(action, placement, stages, sent, after):
    kind, stage, microbatch, part, parts = action
    here = stages[stage]
    down, up = placement.step(stage, 1), placement.step(stage, -1)
    if kind == "F":
        x = sent.pop(("F", stage, microbatch)) if up is not None and part == 1 else None
        y = here.forward(microbatch, x, lent(here.output_shape, here, part == parts), part, parts)
        if down is not None and part == parts:
            sent["F", down, microbatch] = forwarded(y)
        after()
    if kind in ("B", "BW"):
        dy = sent.pop(("B", stage, microbatch)) if down is not None and part == 1 else None
        dx = here.backward_input(microbatch, dy, lent(here.input_shape, here, part == parts), part, parts)
        if up is not None and part == parts:
            sent["B", up, microbatch] = forwarded(dx)
        after()
    if kind in ("W", "BW"):
        here.backward_weight(microbatch, part, parts)
        after()


def lent(shape, stage, wanted):
    return np.full(shape, np.nan, stage.dtype) if shape is not None and wanted else None


def forwarded(buffer):
    """What the receiver gets of a lent buffer; the sender must have kept nothing in it."""
    copy = buffer.copy()
    buffer[...] = np.nan
    return copy


def share_gradients(placement, stages):
    """Sum the gradients of the copies that several routes hold of a stage."""
    for stage in range(placement.route_length):
        copies = stages[stage :: placement.route_length]
        total = sum(copy.gradients for copy in copies)
        for copy in copies:
            copy.gradients[...] = total
