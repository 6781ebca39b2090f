"""Random problems for property tests, small enough for every planner: unequal durations, delays, bandwidths, memory."""

from hypothesis import strategies as st

from lanterne.pipeline.plan.placement import PLACEMENTS, make_placement
from lanterne.pipeline.plan.problem import Problem


@st.composite
def problems(draw, stages=4, microbatches=6, memory=True, data_parallel=True):
    """Problems of at most that many stages and microbatches."""
    stages, microbatches = draw(st.integers(1, stages)), draw(st.integers(1, microbatches))

    def per_stage(least, most, count=stages):
        return draw(st.lists(st.integers(least, most), min_size=count, max_size=count))

    options = {"link_latency": per_stage(0, 9, stages - 1)}
    if draw(st.booleans()):
        options |= {
            "link_bandwidth": per_stage(1, 4, stages - 1),
            "message_nbytes": draw(st.sampled_from([12, [12, 24]])),
        }
        if stages > 2 and draw(st.booleans()):
            options["shared_links"] = [[[0, 1], [1, 2]], [[1, 0], [2, 1]]]
    if memory and draw(st.booleans()):
        forward = per_stage(1, 4)
        backward = [draw(st.integers(-amount, 2)) for amount in forward]
        weight = [-f - b for f, b in zip(forward, backward, strict=True)]
        # Bidirectional placements hold a microbatch of either direction: twice what one needs.
        capacity = [2 * (f + max(b, 0)) + extra for f, b, extra in zip(forward, backward, per_stage(0, 6), strict=True)]
        options["memory"] = {
            "forward": forward,
            "backward_input": backward,
            "backward_weight": weight,
            "capacity": capacity,
        }
    if data_parallel and draw(st.booleans()):
        kinds = {"all_reduce": ("time",), "zero1": ("reduce_scatter", "all_gather")}
        kind = draw(st.sampled_from(sorted(kinds)))
        options["data_parallel"] = {"kind": kind} | {key: per_stage(0, 6) for key in kinds[kind]}
    return Problem(stages, microbatches, per_stage(1, 3), per_stage(1, 4), per_stage(0, 3), **options)


def placements(problem):
    """A strategy of placements of `problem`."""
    return st.sampled_from(sorted(PLACEMENTS)).map(lambda name: make_placement(name, problem.stages))
