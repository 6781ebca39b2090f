"""Messages of plans in torch's form, and the checker of such files; in tests/torch torch runs them."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_problems import problems

from lanterne.errors import InputError, ScheduleError
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.plan.torch_csv import RECV, SEND, WAIT_SEND, TorchAction, parse_rows, rows_of, to_text
from lanterne.pipeline.planners.schedulers import plan
from lanterne.pipeline.simulate.simulate import simulate
from lanterne.pipeline.simulate.torch_messages import check_rows, place_messages

PROBLEM = Problem(3, 4, 2, 2, 1, [1, 1])
NAMES = ("gpipe", "1f1b", "zb_h1", "interleaved_1f1b", "zb_v")


@given(problems(memory=False), st.sampled_from(NAMES), st.sampled_from([(2, 13), (2, 15)]))
def test_messages_of_a_plan_can_run_and_none_is_blocked(problem, scheduler, torch):
    made = plan(problem, scheduler)
    rows = place_messages(made, problem, torch)
    assert parse_rows(to_text(rows)) == rows
    assert [[action for action in row if action.kind] for row in rows] == rows_of(made)
    found = check_rows(rows, problem)
    assert found.notes == []
    assert found.one_queue
    assert found.blocked == 0
    assert found.blocked_time < 1e-9 * found.makespan
    if problem.stages > 1:
        assert found.messages
        assert found.waits == (torch == (2, 15))
    if problem.link_bandwidth is None:
        # Messages that take no time of their ranks are as quick as those that pass each other.
        assert found.makespan == pytest.approx(found.free)
        assert found.free == pytest.approx(simulate(made, replace(problem, data_parallel=None)).makespan)


def test_a_receive_stands_behind_what_ends_before_its_message_begins():
    """It may wait through the computing at whose end the message begins, and through nothing before that."""
    problem = Problem(2, 3, [5, 5], 1, 1)
    rows = [
        [each for each in row if each.word in ("F", *RECV)] for row in place_messages(plan(problem, "gpipe"), problem)
    ]
    assert to_text(rows[1:]).startswith("1RECV_F0,1RECV_F1,1F0,1RECV_F2,1F1,1F2")
    slow = Problem(2, 3, [5, 1], 1, 1)
    rows = [[each for each in row if each.word in ("F", *RECV)] for row in place_messages(plan(slow, "gpipe"), slow)]
    assert to_text(rows[1:]).startswith("1RECV_F0,1F0,1RECV_F1,1F1,1RECV_F2,1F2")


def test_a_receive_before_its_turn_blocks_what_is_ready():
    """The order of pytorch#188833: a rank waits for a late message while its own are ready."""
    rows = [
        "0F0,0SEND_F0,3RECV_F0,0F1,0SEND_F1,3F0,3B0,3SEND_B0,3RECV_F1,3F1,3B1,3SEND_B1,0RECV_B0,0B0,0RECV_B1,0B1",
        "1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1,1RECV_B0,1B0,1SEND_B0,1RECV_B1,1B1,1SEND_B1",
        "2RECV_F0,2F0,2SEND_F0,2RECV_F1,2RECV_B0,2F1,2SEND_F1,2B0,2SEND_B0,2RECV_B1,2B1,2SEND_B1",
    ]
    problem = Problem(3, 2, [2, 1, 8], 1, 1)
    found = check_rows(parse_rows("\n".join(rows)), problem)
    # 0SEND_F1 could move at 2, once 0F1 and 1F0 have ended; 3RECV_F0 before it ends at 10, with 2F0.
    assert (found.blocked, found.blocked_time) == (1, 8.0)
    assert check_rows(place_messages(found.plan, problem), problem).blocked == 0


def test_what_torch_would_run_into_is_named():
    """The orders of pytorch#172668, in which both ranks send first."""
    rows = parse_rows(
        "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1"
    )
    start = "^deadlock over NCCL, which moves the messages of a pair of ranks in order"
    with pytest.raises(ScheduleError, match=rf"{start}(?=.* 0SEND_F1 to 1RECV_F1 )(?=.* 1SEND_B0 to 0RECV_B0 )"):
        check_rows(rows)


def test_a_circle_over_three_ranks_needs_one_queue_for_each_rank():
    """Without a device_id each pair of ranks has a queue, and there is no circle."""
    rows = [
        "0F0,0SEND_F0,3RECV_F0,0F1,0SEND_F1,3F0,3B0,3SEND_B0,3RECV_F1,3F1,3B1,3SEND_B1,0RECV_B0,0B0,0RECV_B1,0B1",
        "1RECV_F0,1F0,1RECV_F1,1SEND_F0,1F1,1SEND_F1,1RECV_B0,1B0,1SEND_B0,1RECV_B1,1B1,1SEND_B1",
        "2RECV_F0,2F0,2SEND_F0,2RECV_F1,2RECV_B0,2F1,2SEND_F1,2B0,2SEND_B0,2RECV_B1,2B1,2SEND_B1",
    ]
    found = check_rows(parse_rows("\n".join(rows)))
    assert not found.one_queue
    start = (
        "with a device_id in init_process_group it never ends: deadlock over NCCL, which moves the messages of a rank"
    )
    assert found.notes[0].startswith(start)
    assert "0SEND_F1 to 1RECV_F1 (ranks 0, 1)" in found.notes[0]


def _changed(rows, change):
    rows = [list(row) for row in rows]
    return change(rows) or rows


def _place(rows, words):
    rank = next(rank for rank, row in enumerate(rows) if any(action.word in words for action in row))
    return rank, next(place for place, action in enumerate(rows[rank]) if action.word in words)


def _drop(words):
    def change(rows):
        rank, place = _place(rows, words)
        del rows[rank][place]

    return change


def _double(words):
    def change(rows):
        rank, place = _place(rows, words)
        rows[rank].append(rows[rank][place])

    return change


def _to(words, where):
    def change(rows):
        rank, place = _place(rows, words)
        rows[rank].insert(where, rows[rank].pop(place))

    return change


def _put(action):
    return lambda rows: rows[0].append(action)


def _swap_receives(rows):
    places = [place for place, action in enumerate(rows[1]) if action.word == "RECV_F"][:2]
    first, second = places
    rows[1][first], rows[1][second] = rows[1][second], rows[1][first]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_drop(SEND), r"rank 0, action \d: got no 0SEND_F0, expected it after 0F0\n  .*>0F0<"),
        (_drop(RECV), r"rank 0, action \d+: got no 0RECV_B0, expected it before 0B0"),
        (_drop(WAIT_SEND), r"rank 0, action 3: got no 0WAIT_SEND_F0, expected it once, behind the send"),
        (_double(SEND), r"rank 0, action \d+: got 0SEND_F0 again, expected it once"),
        (_to(SEND, 0), r"rank 0, action 1: got 0SEND_F0, expected it after 0F0"),
        (_to(RECV, 99), r"rank 0, action \d+: got 0RECV_B0, expected it before 0B0"),
        (_to(WAIT_SEND, 0), r"rank 0, action 4: got 0WAIT_SEND_F0 before 0SEND_F0, expected it once, behind"),
        (
            _to(("REDUCE_GRAD",), 3),
            r"rank 0, action 4: got 0REDUCE_GRAD before 0B3, expected it behind the stage's last",
        ),
        (_put(TorchAction(0, "SEND_B", 0)), r"rank 0, action \d+: got 0SEND_B0, expected no message"),
        (_put(TorchAction(0, "WAIT_SEND_B", 1)), r"rank 0, action \d+: got 0WAIT_SEND_B1 without a 0SEND_B1"),
        (
            _drop(("WAIT_REDUCE_GRAD",)),
            r"rank 0, action \d+: got no 0WAIT_REDUCE_GRAD, expected it behind 0REDUCE_GRAD: torch 2.15 waits",
        ),
        (
            _to(("WAIT_REDUCE_GRAD",), 0),
            r"rank 0, action 1: got 0WAIT_REDUCE_GRAD, expected it behind 0REDUCE_GRAD, once",
        ),
        (
            _swap_receives,
            r"rank 1, action \d+: got 1RECV_F1 before 1RECV_F0, but rank 0 sends 0SEND_F0 first; expected one",
        ),
    ],
)
def test_a_mistake_is_named(change, message):
    rows = place_messages(plan(PROBLEM, "1f1b"), PROBLEM)
    with pytest.raises(ScheduleError, match=message):
        check_rows(_changed(rows, change), PROBLEM)


def test_every_order_that_runs_is_accepted_and_every_other_is_refused():
    """Messages of a rank in drawn orders: the checker agrees with ranks that run them, one message at a time."""
    drawn, seen = random.Random(8), set()
    rows = place_messages(plan(Problem(3, 2, 1, 1, 1), "1f1b"), Problem(3, 2, 1, 1, 1), (2, 13))
    for _ in range(300):
        trial = [list(row) for row in rows]
        for row in trial:
            for _ in range(drawn.randrange(3)):
                place = drawn.randrange(len(row) - 1)
                row[place], row[place + 1] = row[place + 1], row[place]
        try:
            verdict = check_rows(trial).one_queue
        except ScheduleError:
            verdict = False
        assert verdict == _runs(trial), to_text(trial)
        seen.add(verdict)
    assert seen == {True, False}


def _runs(rows):
    """Whether ranks that move one message after the other, matched by order, all end, with what each needs."""
    at, queues, done = [0] * len(rows), [[] for _ in rows], set()
    peer = {"SEND_F": 1, "SEND_B": -1, "RECV_F": -1, "RECV_B": 1}
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            while at[rank] < len(row):
                action = row[at[rank]]
                stage, word, microbatch = action
                if word in peer:
                    made = (stage, "F" if word == "SEND_F" else "B", microbatch)
                    if word in SEND and made not in done:
                        return False
                    queues[rank].append(action)
                elif action.kind:
                    needs = [(stage, "RECV_F", microbatch)] if word == "F" and stage else []
                    if word == "B":
                        needs = [(stage, "F", microbatch)] + [(stage, "RECV_B", microbatch)] * (stage < len(rows) - 1)
                    missing = [each for each in needs if each not in done]
                    if missing:
                        if any(each in row[at[rank] :] or each[1] in ("F", "B") for each in missing):
                            return False
                        break
                    done.add((stage, word, microbatch))
                elif word == "REDUCE_GRAD" and any(each.kind for each in row[at[rank] :]):
                    return False
                at[rank] += 1
                moved = True
        for rank in range(len(rows)):
            if not queues[rank]:
                continue
            stage, word, microbatch = queues[rank][0]
            other = stage + peer[word]
            match = TorchAction(other, {"SEND_F": "RECV_F", "SEND_B": "RECV_B"}.get(word, ""), microbatch)
            if word in SEND and queues[other]:
                head = queues[other][0]
                if head.word in RECV and head.stage + peer[head.word] == rank:
                    if head != match:
                        return False
                    queues[rank].pop(0), queues[other].pop(0)
                    done.add(tuple(match))
                    moved = True
    return all(place == len(row) for place, row in zip(at, rows, strict=True)) and not any(queues)


def test_computing_alone_is_checked_as_a_plan():
    found = check_rows(rows_of(plan(PROBLEM, "zb_h1")), PROBLEM)
    assert (found.messages, found.makespan) == (0, simulate(plan(PROBLEM, "zb_h1"), PROBLEM).makespan)
    assert found.notes == ["computing alone: torch places the messages"]
    with pytest.raises(ScheduleError, match="got no 0I1 and no 0B1"):
        check_rows(parse_rows("0F0,0F1,0B0"))
    with pytest.raises(ScheduleError, match="rank 0 waits at 0I0 for 1B0, rank 1 waits at 1F1 for 0F1"):
        check_rows(parse_rows("0F0,0I0,0W0,0F1,0I1,0W1\n1F1,1B1,1F0,1B0"))


def test_what_a_file_leaves_out_is_noted():
    rows = [
        [each for each in row if each.word not in ("UNSHARD", "REDUCE_GRAD", "WAIT_REDUCE_GRAD")]
        for row in place_messages(plan(PROBLEM, "1f1b"), PROBLEM)
    ]
    assert check_rows(rows, PROBLEM).notes == [
        "no UNSHARD of stages [0, 1, 2]: FSDP2 needs it before they compute",
        "no REDUCE_GRAD of stages [0, 1, 2]: gradients are neither scaled nor summed over copies",
    ]


def test_two_routes_are_refused():
    with pytest.raises(InputError, match="got placement bidirectional, expected one route"):
        place_messages(plan(PROBLEM, "crosspipe", placement="bidirectional"), PROBLEM)
