"""Programs give the right result in every order of events that a transport may produce, and never wait in a circle."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreter import Deadlock, reducing_transfers, run_group

from lanterne.collectives.algorithms.catalogue import ALGORITHMS
from lanterne.collectives.auto.pacing import NEIGHBOUR_CREDITS
from lanterne.collectives.execute.compile_program import compile_program
from lanterne.collectives.execute.plans import checked_schedule
from lanterne.collectives.execute.rank_program import Fold, Message, Move
from lanterne.collectives.schedule.contracts import CONTRACTS

NAMES = sorted(ALGORITHMS)


def programs_of(collective, algorithm, n, part_count, segment_nbytes, root=None, **options):
    checked = checked_schedule(collective, algorithm, n, root=root)
    return [
        compile_program(checked, rank, part_count, 8, segment_nbytes=segment_nbytes, **options) for rank in range(n)
    ]


def value(rank, count):
    return np.arange(count, dtype=np.int64) * 7 + 1000 * rank


def expected(collective, n, part_count, root):
    """Per rank, the whole output; None where there is none."""
    if collective in ("all_reduce", "reduce"):
        total = sum(value(rank, part_count) for rank in range(n))
        return [total if collective == "all_reduce" or rank == root else None for rank in range(n)]
    if collective in ("scan", "exscan"):
        before = [sum(value(rank, part_count) for rank in range(last + (collective == "scan"))) for last in range(n)]
        return [total if last or collective == "scan" else None for last, total in enumerate(before)]
    if collective == "broadcast":
        return [value(root, part_count)] * n
    counts = part_count if isinstance(part_count, list) else [part_count] * n
    if collective in ("reduce_scatter", "scatter"):
        whole = sum(value(rank, sum(counts)) for rank in (range(n) if collective == "reduce_scatter" else [root]))
        return np.split(whole, np.cumsum(counts)[:-1])
    if collective in ("all_gather", "gather"):
        whole = np.concatenate([value(rank, count) for rank, count in enumerate(counts)])
        return [whole if root in (None, rank) else None for rank in range(n)]
    assert collective == "all_to_all"
    return [
        np.concatenate([np.split(value(other, n * part_count), n)[rank] for other in range(n)]) for rank in range(n)
    ]


def usable(collective, algorithm, n):
    return not ALGORITHMS[collective, algorithm].refuses(n)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_every_order_of_events_gives_the_result(data):
    collective, algorithm = data.draw(st.sampled_from([key for key in NAMES if key[0] != "barrier"]))
    n = data.draw(st.sampled_from([n for n in (1, 2, 3, 4, 5, 6, 8) if usable(collective, algorithm, n)]))
    part_count = data.draw(st.integers(0, 40))
    segment_nbytes = data.draw(st.sampled_from([1, 8, 24, 64, 1 << 20]))
    in_place = collective in ("all_reduce", "reduce") and data.draw(st.booleans())
    contract = CONTRACTS[collective]
    root = data.draw(st.integers(0, n - 1)) if contract.rooted else None
    if contract.parts(n) == n > 1 and data.draw(st.booleans()):
        part_count = data.draw(st.lists(st.integers(0, 40), min_size=n, max_size=n))
    options = {"in_place": in_place, "credits": data.draw(st.sampled_from([None, 1, 2]))}
    programs = programs_of(collective, algorithm, n, part_count, segment_nbytes, root, **options)
    inputs = [value(rank, program.in_count) for rank, program in enumerate(programs)]
    before = [array.copy() for array in inputs]
    outputs = [
        array if in_place and program.out_count else np.full(program.out_count, -1, np.int64)
        for array, program in zip(inputs, programs, strict=True)
    ]
    seed, eager = data.draw(st.integers(0, 2**32)), data.draw(st.booleans())
    run_group(programs, inputs, outputs, np.int64, seed=seed, eager=eager)
    for rank, result in enumerate(expected(collective, n, part_count, root)):
        if result is not None:
            np.testing.assert_array_equal(outputs[rank], result, err_msg=f"rank {rank}")
        if not in_place or not programs[rank].out_count:
            np.testing.assert_array_equal(inputs[rank], before[rank], err_msg=f"rank {rank}")


@pytest.mark.parametrize("algorithm", [name for collective, name in NAMES if collective == "all_reduce"])
def test_mean_divides_every_element_once(algorithm):
    n = 4
    programs = programs_of("all_reduce", algorithm, n, 13, 32, mean=True)
    inputs = [np.arange(13.0) + 100 * rank for rank in range(n)]
    outputs = [np.zeros(13) for _ in range(n)]
    run_group(programs, inputs, outputs, np.float64, "mean")
    np.testing.assert_array_equal(outputs, [np.arange(13.0) + 150] * n)


def test_barrier_sends_empty_messages():
    programs = programs_of("barrier", "dissemination", 5, 0, 64)
    assert all(any(type(action) is Message for action in program.actions) for program in programs)
    run_group(programs, [np.empty(0)] * 5, [np.empty(0)] * 5, np.float64)


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "all_to_all"])
def test_empty_arrays_send_nothing(collective):
    for program in programs_of(collective, "ring" if collective != "all_to_all" else "pairwise", 4, 0, 64):
        assert program.actions == (), program


def test_ring_out_of_place_copies_nothing():
    """The first fold of a chunk reads the input and writes the output; what is received last lands there directly."""
    (program, *_) = programs_of("all_reduce", "ring", 4, 64, 1 << 20)
    assert not any(type(action) is Move for action in program.actions)
    assert sum(type(action) is Fold for action in program.actions) == 3
    assert sum(type(action) is Message for action in program.actions) == 12


@pytest.mark.parametrize("algorithm", [name for collective, name in NAMES if collective == "all_reduce"])
@pytest.mark.parametrize("n", [3, 8])
def test_all_reduce_scratch_is_two_segments_per_reducing_transfer(algorithm, n):
    if not usable("all_reduce", algorithm, n):
        pytest.skip(f"{algorithm} cannot run on {n} ranks")
    segment_nbytes = 512
    checked = checked_schedule("all_reduce", algorithm, n)
    for rank in range(n):
        program = compile_program(checked, rank, 64 * 100, 8, segment_nbytes=segment_nbytes)
        assert program.scratch_nbytes <= 2 * reducing_transfers(checked, rank) * segment_nbytes, rank


@pytest.mark.parametrize("credits", [1, 3])
def test_credits_bound_the_posted_receives(credits):
    """A receive is one event short until all but `credits` - 1 of those before it are complete."""
    (program, *_) = programs_of("all_gather", "ring", 4, 64, 64, credits=credits)
    receives = [i for i, action in enumerate(program.actions) if type(action) is Message and not action.sends]
    assert len(receives) > 10
    for before, receive in zip(receives, receives[credits:], strict=False):
        assert receive in program.successors[before], (before, receive)


@pytest.mark.parametrize("in_turn", [False, True])
def test_sends_are_posted_in_turn_where_that_is_asked_for(in_turn):
    """A send to another peer than the one before waits for that one but one only then."""
    (*_, program) = programs_of("all_to_all", "pairwise", 4, 64 * 64, 64, credits=2, in_turn=in_turn)
    sends = [i for i, action in enumerate(program.actions) if type(action) is Message and action.sends]
    assert len(sends) > 10
    waits = [send in program.successors[before] for before, send in zip(sends, sends[2:], strict=False)]
    assert all(waits) if in_turn else not any(waits)


def test_neighbours_have_credits_of_their_own():
    """Those of the same node do not wait for messages from others, nor these for theirs."""
    (program, *_) = programs_of("all_to_all", "pairwise", 4, 64 * 64, 64, credits=1, nodes=((0, 1, 2), (3,)))
    for peer, window in ((1, NEIGHBOUR_CREDITS), (2, NEIGHBOUR_CREDITS), (3, 1)):
        receives = [i for i, a in enumerate(program.actions) if type(a) is Message and not a.sends and a.peer == peer]
        assert len(receives) > NEIGHBOUR_CREDITS, (peer, window)
        for before, receive in zip(receives, receives[window:], strict=False):
            assert receive in program.successors[before], (peer, window, before, receive)
        assert not any(program.waits[receive] > 1 for receive in receives[:window]), (peer, window)


@pytest.mark.parametrize(("nodes", "is_small"), [(((0,), (1, 2), (3, 4)), True), (((0, 1), (2, 3), (4,)), False)])
def test_ranks_of_small_nodes_have_credits_for_each_of_the_others(nodes, is_small):
    """Of the first of `nodes`: in one smaller than others a receive waits for those of the same node alone."""
    (program, *_) = programs_of("all_to_all", "pairwise", 5, 64 * 64, 64, credits=1, nodes=nodes)
    from_node = {
        i: next(node for node in nodes if action.peer in node)
        for i, action in enumerate(program.actions)
        if type(action) is Message and not action.sends and action.peer not in nodes[0]
    }
    lines = [[i for i in from_node if from_node[i] == node] for node in nodes[1:]] if is_small else [[*from_node]]
    assert all(len(line) > 10 for line in lines)
    waits = {pair for line in lines for pair in pairwise(line)}
    assert {(i, j) for i in from_node for j in program.successors[i] if j in from_node} == waits


def test_small_chunks_share_messages():
    """Halving sends half of all chunks at once: as one message while that fits a segment."""
    counts = {}
    for segment_nbytes in (1 << 20, 8):
        program = programs_of("all_reduce", "rhd", 8, 8, segment_nbytes)[0]
        counts[segment_nbytes] = sum(type(action) is Message and action.sends for action in program.actions)
    assert counts == {1 << 20: 6, 8: 14}


def test_the_interpreter_notices_a_missing_event():
    """The tests above would see a program that does not wait for what it reads."""
    programs = programs_of("all_reduce", "ring", 3, 9, 8)
    wrong = 0
    for seed in range(30):
        broken = [_without_data_events(program) for program in programs]
        inputs, outputs = [value(rank, 9) for rank in range(3)], [np.zeros(9, np.int64) for _ in range(3)]
        try:
            run_group(broken, inputs, outputs, np.int64, seed=seed)
        except AssertionError:
            wrong += 1
            continue
        wrong += any((output != sum(inputs)).any() for output in outputs)
    assert wrong


def test_the_interpreter_notices_a_circle():
    programs = programs_of("all_reduce", "ring", 2, 4, 1 << 20)
    stuck = [_with_sends_after_receives(program) for program in programs]
    with pytest.raises(Deadlock):
        run_group(stuck, [value(rank, 4) for rank in range(2)], [np.zeros(4, np.int64) for _ in range(2)], np.int64)


def _without_data_events(program):
    """No fold waits for anything: it may run before its operand has arrived."""
    folds = {index for index, action in enumerate(program.actions) if type(action) is Fold}
    successors = tuple(tuple(s for s in followers if s not in folds) for followers in program.successors)
    waits = tuple(0 if index in folds else waits for index, waits in enumerate(program.waits))
    return replace(program, successors=successors, waits=waits)


def _with_sends_after_receives(program):
    """The first send waits for the first receive."""
    send = next(i for i, action in enumerate(program.actions) if type(action) is Message and action.sends)
    receive = next(i for i, action in enumerate(program.actions) if type(action) is Message and not action.sends)
    waits, successors = list(program.waits), list(program.successors)
    waits[send] += 1
    successors[receive] = (*successors[receive], send)
    return replace(program, waits=tuple(waits), successors=tuple(successors))


# Nodes with slow NICs have no roles.
LATE = [line for line in ALGORITHMS.values() if line.late and not line.leaves]


@pytest.mark.parametrize("line", LATE, ids=lambda line: line.name)
def test_whoever_is_late_a_role_has_one_program(line):
    """As RankPrograms has it: the program of a rank's role, with the peers of the late rank that it is."""
    n = 4 if line.refuses(5) else 5
    last = checked_schedule("all_reduce", line.name, n, late_rank=n - 1)
    for late in range(n):
        checked = checked_schedule("all_reduce", line.name, n, late_rank=late)
        rank_of = [*(rank for rank in range(n) if rank != late), late]
        for role, rank in enumerate(rank_of):
            one, other = (
                compile_program(each, number, 1001, 4, segment_nbytes=64, credits=2)
                for each, number in ((checked, rank), (last, role))
            )
            assert other.with_peers(rank_of) == one, (late, role, rank)
