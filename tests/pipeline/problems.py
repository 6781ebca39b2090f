"""Random problems and random valid plans for the tests of this folder."""

from hypothesis import strategies as st

from lanterne.pipeline.plan.action import Action, dependencies
from lanterne.pipeline.plan.costs import costs
from lanterne.pipeline.plan.placement import bidirectional, loop, unidirectional, wave
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem

PLACEMENTS = {
    "unidirectional": unidirectional,
    "loop": loop,
    "wave": wave,
    "wave of 3": lambda ranks: wave(ranks, 3),
    "bidirectional": bidirectional,
}
placements = st.sampled_from(sorted(PLACEMENTS))
durations = st.integers(1, 6)


STAGES, MICROBATCHES = st.integers(1, 4), st.integers(1, 5)


@st.composite
def problems(draw, stages=STAGES, microbatches=MICROBATCHES, shared=False, memory=True, latency=5, occupancy=True):
    """Whole-number problems; with `shared`, links that several ranks send on."""
    p = draw(stages)

    def per_stage(values):
        return [draw(values) for _ in range(p)]

    keys = {
        "stages": p,
        "microbatches": draw(microbatches),
        "forward": per_stage(durations),
        "backward_input": per_stage(durations),
        "backward_weight": per_stage(st.integers(0, 6)),
        "link_latency": [[draw(st.integers(0, latency)) for _ in range(p)] for _ in range(p)],
    }
    if occupancy and p > 1 and draw(st.booleans()):
        keys["link_bandwidth"] = [[draw(st.sampled_from([None, 1, 2])) for _ in range(p)] for _ in range(p)]
        keys["message_nbytes"] = draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))
        if shared:
            pairs = [(src, dst) for src in range(p) for dst in range(p) if src != dst]
            keys["shared_links"] = (
                [draw(st.lists(st.sampled_from(pairs), unique=True, min_size=2))] if len(pairs) > 1 else []
            )
    if memory and draw(st.booleans()):
        keys["max_inflight_activations"] = draw(st.integers(1, 4))
    elif memory and draw(st.booleans()):
        forward, after_b = draw(st.integers(1, 4)), draw(st.integers(0, 5))
        deltas = {"forward": forward, "backward_input": after_b - forward, "backward_weight": -after_b}
        keys["memory"] = deltas | {"capacity": max(forward, after_b) + draw(st.integers(0, 6))}
    if draw(st.booleans()):
        keys["data_parallel"] = draw(
            st.sampled_from(
                [{"kind": "all_reduce", "time": 4}, {"kind": "zero1", "reduce_scatter": 3, "all_gather": 5}]
            )
        )
    if draw(st.integers(0, 3)) == 0:
        keys["recompute"] = {"keeps": draw(st.sampled_from([0, 0.25, 1]))}
    return Problem.from_dict(keys)


@st.composite
def plans(draw, problem, placement, parts=True, within_memory=False):
    """A valid plan built by running random actions whose needs are met; with `within_memory` only where they fit.

    Returns None if memory leaves no action to run, as greedy choices can.
    """
    table = costs(problem, placement)
    random = draw(st.randoms(use_true_random=False))
    left = {}
    for stage in range(placement.num_stages):
        for microbatch in placement.microbatches_of(stage, problem.microbatches):
            for kind in ("F", "BW") if random.random() < 0.25 else ("F", "B", "W"):
                count = random.choice((1, 1, 1, 2, 3)) if parts else 1
                left[Action(kind, stage, microbatch)] = [
                    Action(kind, stage, microbatch, i + 1, count) for i in range(count)
                ]
    done, ranks = set(), [[] for _ in range(placement.num_ranks)]
    used = [0.0] * placement.num_ranks
    while left:
        ready = [whole for whole in left if all(_is_done(need, done) for need in dependencies(whole, placement))]
        if within_memory:
            ready = [whole for whole in ready if _fits(whole, left, used, table, placement, problem)]
        if not ready:
            return None
        whole = random.choice(sorted(ready))
        part = left[whole].pop(0)
        rank = placement.stage_to_rank[whole.stage]
        ranks[rank].append(part)
        ident = _id(whole, table)
        if part.part == 1:
            used[rank] += table.alloc[ident]
        if part.part == part.parts:
            used[rank] -= table.free[ident]
            del left[whole]
            done.add(whole)
    return Plan.from_actions(ranks, placement, problem.microbatches, "random")


def _is_done(need, done):
    return need in done or (need.kind == "B" and need._replace(kind="BW") in done)


def _id(whole, table):
    return table.id(("F", "B", "W", "BW").index(whole.kind), whole.stage, whole.microbatch)


def _fits(whole, left, used, table, placement, problem):
    rank = placement.stage_to_rank[whole.stage]
    return (
        left[whole][0].part > 1 or used[rank] + table.alloc[_id(whole, table)] <= problem.limits.capacity[rank] + 1e-9
    )
