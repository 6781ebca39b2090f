"""A physical link that ranks share takes one message after the other, whoever sends it."""

import itertools
import threading

from hypothesis import given
from hypothesis import strategies as st

from lanterne.pipeline.planes.shared_wire import SharedWires, make_file
from lanterne.transport.shaped import Ends, Link


def test_ranks_take_turns_at_one_link_and_not_at_others(tmp_path):
    path = make_file(tmp_path, 2)
    both = [SharedWires(path, 2) for _ in range(2)]
    links = [
        {(0, 2): Link(1.0, 10.0, wires.wires[0]), (1, 2): Link(0.5, 10.0, wires.wires[0]),
         (0, 1): Link(0.0, 10.0, wires.wires[1]), (1, 0): Link(0.0, 10.0)}
        for wires in both
    ]  # fmt: skip
    first, second = (Ends(rank, links[rank], separate=True) for rank in range(2))
    assert first.leave(2, 20, 5.0) == (5.0, 7.0)
    assert second.leave(2, 10, 6.0) == (7.0, 8.0)
    assert first.leave(1, 30, 6.0) == (6.0, 9.0)
    assert second.leave(0, 30, 6.0) == (6.0, 9.0)
    assert first.leave(2, 20, 20.0) == (20.0, 22.0)
    # It arrives as on a link of its own.
    assert Ends(2, links[0], separate=True).arrive(0, 20, 5.0) == 8.0
    for wires in both:
        wires.close()


@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=20), min_size=2, max_size=4))
def test_no_two_messages_cross_at_once(tmp_path_factory, busy):
    folder = tmp_path_factory.mktemp("wires")
    path, spans = make_file(folder, 1), []

    def rank(times):
        wires = SharedWires(path, 1)
        spans.extend((begin, begin + time) for time in times for begin in [wires.turn(0, 1.0, time)])
        wires.close()

    threads = [threading.Thread(target=rank, args=(times,)) for times in busy]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spans.sort()
    # And none waits while the link is free.
    assert spans[0][0] == 1.0
    assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(spans))
    assert spans[-1][1] == 1.0 + sum(map(sum, busy))
