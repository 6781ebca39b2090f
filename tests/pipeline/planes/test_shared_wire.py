"""A physical link that ranks share takes one message after the other, whoever sends it."""

import itertools
import threading

from hypothesis import given
from hypothesis import strategies as st

from lanterne.pipeline.planes.shared_wire import SharedWires, make_file


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
