"""The checker: every drop, double, swap and move of an action is caught, or the plan is as good as before."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import PLACEMENTS, placements, plans, problems

from lanterne.errors import InputError, ScheduleError
from lanterne.pipeline.plan.action import Action, dependencies
from lanterne.pipeline.plan.placement import unidirectional
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.schedulers import SCHEDULERS, plan
from lanterne.pipeline.simulate.analysis import memory_profile
from lanterne.pipeline.simulate.check_plan import check
from lanterne.pipeline.simulate.simulate import simulate

STATIC = [name for name, (module, _, _) in SCHEDULERS.items() if module.startswith("schedules.")]
SMALL = Problem(3, 4, 1, 2, 3)


def valid(ranks, placement, microbatches):
    """A second, slow opinion: run the ranks in any order until all is done or nobody can go on."""
    wanted = set()
    for stage in range(placement.num_stages):
        for m in placement.microbatches_of(stage, microbatches):
            wanted.add(("F", stage, m))
            fused = any(a[:3] == ("BW", stage, m) for rank in ranks for a in rank)
            wanted |= {("BW", stage, m)} if fused else {("B", stage, m), ("W", stage, m)}
    flat = [action for rank in ranks for action in rank]

    def holds(r, stage):
        return stage < placement.num_stages and placement.stage_to_rank[stage] == r

    if len(set(flat)) != len(flat) or not all(holds(r, a.stage) for r, rank in enumerate(ranks) for a in rank):
        return False
    pieces = {}
    for action in flat:
        pieces.setdefault(action[:3], []).append(action)
    if set(pieces) != wanted or any(
        [a[3:] for a in found] != [(i + 1, len(found)) for i in range(len(found))] for found in pieces.values()
    ):
        return False
    done, at, moved = set(), [0] * len(ranks), True

    def is_done(need):
        return need in done or need._replace(kind="BW") in done

    while moved:
        moved = False
        for r, rank in enumerate(ranks):
            while at[r] < len(rank) and all(map(is_done, dependencies(rank[at[r]], placement))):
                action = rank[at[r]]
                done |= {action} | ({Action(*action[:3])} if action.part == action.parts else set())
                at[r] += 1
                moved = True
    return all(i == len(rank) for i, rank in zip(at, ranks, strict=True))


def mutations(ranks):
    """(what, ranks) for every drop, double, change of kind and neighbour swap, and moves to other ranks and places."""
    for r, i in [(r, i) for r, rank in enumerate(ranks) for i in range(len(rank))]:

        def edit(rank, r=r):
            return [*ranks[:r], rank, *ranks[r + 1 :]]

        mine, action = ranks[r], ranks[r][i]
        yield f"drop {action}", edit([*mine[:i], *mine[i + 1 :]])
        yield f"double {action}", edit([*mine[: i + 1], action, *mine[i + 1 :]])
        yield f"double {action} at the end", edit([*mine, action])
        for change in (
            {"stage": action.stage + 1},
            {"microbatch": action.microbatch + 1},
            {"part": 1, "parts": 2},
            {"kind": "BW"},
        ):
            if action._replace(**change) != action:
                yield f"turn {action} into {change}", edit([*mine[:i], action._replace(**change), *mine[i + 1 :]])
        for j in range(len(mine)):
            rest = [*mine[:i], *mine[i + 1 :]]
            if i != j:
                yield f"move {action} to {j}", edit([*rest[:j], action, *rest[j:]])
        if i + 1 < len(mine):
            yield f"swap {action}", edit([*mine[:i], mine[i + 1], action, *mine[i + 2 :]])
        other = (r + 1) % len(ranks)
        moved = [list(rank) for rank in ranks]
        moved[other].append(moved[r].pop(i))
        if other != r:
            yield f"move {action} to rank {other}", moved


def accepts(ranks, placement, problem):
    try:
        check(Plan.from_actions(ranks, placement, problem.microbatches), problem)
    except ScheduleError as error:
        assert "\n  rank 0:" in str(error)
        return False
    return True


@pytest.mark.parametrize("scheduler", STATIC)
def test_every_mutation_is_caught_or_harmless(scheduler):
    made = plan(SMALL, scheduler)
    ranks = [list(rank) for rank in made.ranks]
    caught = 0
    for what, mutated in mutations(ranks):
        good = valid(mutated, made.placement, SMALL.microbatches)
        assert accepts(mutated, made.placement, SMALL) == good, what
        caught += not good
    assert caught > 100


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_random_plans_with_parts_pass_and_their_mutations_do_not(data):
    problem = data.draw(problems(stages=st.integers(1, 3), microbatches=st.integers(1, 3), memory=False))
    placement = PLACEMENTS[data.draw(placements)](problem.stages)
    made = data.draw(plans(problem, placement))
    assert check(made, problem).plan is made
    what, mutated = data.draw(st.sampled_from(list(mutations([list(rank) for rank in made.ranks]))))
    assert accepts(mutated, placement, problem) == valid(mutated, placement, problem.microbatches), what


def refused(ranks, problem=SMALL, placement=None):
    ranks = [[Action.parse(word) for word in rank.split()] for rank in ranks]
    with pytest.raises(ScheduleError) as error:
        check(Plan.from_actions(ranks, placement or unidirectional(problem.stages), problem.microbatches), problem)
    return str(error.value)


TWO = Problem(2, 2, 1, 2, 3)
GOOD = ["F0.0 F0.1 B0.0 W0.0 B0.1 W0.1", "F1.0 B1.0 W1.0 F1.1 B1.1 W1.1"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("F0.1 ", "", "rank 0: got no F0.1, expected it once"),
        ("W1.1", "", "rank 1: got no W1.1 and no BW1.1, expected it once"),
        ("F0.1 ", "F0.1 F0.1 ", "got F0.1 as number 2 of F0.1, expected F0.1 once"),
        ("F0.1 ", "F1.1 ", "rank 0: got F1.1, expected it on rank 1, which holds stage 1"),
        ("F0.1 ", "F2.1 ", "rank 0: got F2.1, expected stages 0 to 1"),
        ("F0.1 ", "F0.2 ", "rank 0: got F0.2, expected microbatches 0 to 1"),
        ("F0.1 ", "F0.1.1/2 ", "F0.1.1/2 is the last of its parts, expected all 2"),
        (
            "F0.1 ",
            "F0.1.2/2 F0.1.1/2 ",
            "got F0.1.2/2 as number 1 of F0.1, expected F0.1 the parts 1 to 2 in this order",
        ),
        ("W0.1", "W0.1 BW0.1", "got both B0.1 and BW0.1, expected one of them"),
        ("F1.0 B1.0", "B1.0 F1.0", "rank 1: got B1.0 before F1.0, which it needs"),
        ("B0.0 W0.0", "W0.0 B0.0", "rank 0: got W0.0 before B0.0, which it needs"),
        ("F0.1 B0.0", "B0.0 F0.1", None),
        (
            "F1.0 B1.0 W1.0 F1.1 B1.1",
            "F1.0 F1.1 B1.1 B1.0 W1.0",
            None,
        ),
    ],
)
def test_messages_name_the_place(old, new, message):
    ranks = [rank.replace(old, new) for rank in GOOD]
    assert ranks != GOOD
    if message is None:
        check(Plan.from_actions([[Action.parse(w) for w in rank.split()] for rank in ranks], unidirectional(2), 2), TWO)
    else:
        assert message in refused(ranks, TWO)


def test_a_deadlock_shows_its_cycle():
    text = refused(["F0.0 B0.0 W0.0 F0.1 B0.1 W0.1", "F1.0 F1.1 B1.0 W1.0 B1.1 W1.1"], TWO)
    assert text.startswith("deadlock: rank 0 waits at B0.0 for B1.0, rank 1 waits at F1.1 for F0.1\n")
    assert ">B0.0<" in text and ">F1.1<" in text


def test_too_much_memory_names_the_first_action_that_does_not_fit():
    problem = Problem(2, 2, 1, 2, 3, max_inflight_activations=1)
    text = refused(GOOD, problem)
    assert text.startswith("memory: rank 0 needs 2, over its capacity of 1 first at F0.1\n") and ">F0.1<" in text


def test_a_plan_of_other_size_is_refused():
    with pytest.raises(ScheduleError, match="got 2 microbatches, expected the problem's 3"):
        check(plan(TWO, "1f1b"), Problem(2, 3, 1, 2, 3))
    with pytest.raises(InputError, match="got 2 ranks, expected 3"):
        check(plan(TWO, "1f1b"), Problem(3, 2, 1, 2, 3))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_plans_survive_json(data):
    problem = data.draw(problems(memory=False))
    made = data.draw(plans(problem, PLACEMENTS[data.draw(placements)](problem.stages)))
    again = Plan.from_dict(json.loads(json.dumps(made.to_dict())))
    assert again.ranks == made.ranks and again.placement.stage_to_rank == made.placement.stage_to_rank
    assert again.placement.num_routes == made.placement.num_routes and again.microbatches == made.microbatches


def test_memory_is_held_until_the_last_part_of_w():
    words = "F0.0 B0.0 W0.0.1/2 F0.1 B0.1 W0.0.2/2 W0.1".split()
    made = Plan.from_actions([map(Action.parse, words)], unidirectional(1), 2)
    problem = Problem(1, 2, 1, 1, 1, memory={"forward": 3, "backward_input": -1, "backward_weight": -2})
    checked = check(made, problem)
    assert checked.peak_memory == (5.0,)
    (levels,) = [levels.tolist() for _, levels in memory_profile(simulate(checked, problem))]
    assert max(levels) == 5 and levels[-1] == 0
