"""Drawings: every transfer is in them, in the place where it happens."""

import itertools
import re
from xml.etree import ElementTree

import pytest

from lanterne.collectives.algorithms.catalogue import make_schedule
from lanterne.collectives.schedule.draw import draw_svg, draw_text


def test_text_of_a_small_schedule():
    assert draw_text(make_schedule("all_reduce", "late_join", 3, late_rank=1, num_chunks=2)) == (
        "reduce_scatter: 1 rounds\n"
        "round           0\n"
        "rank 0       1>2+\n"
        "rank 1 late     .\n"
        "rank 2       0>0+\n"
        "\n"
        "join: 3 rounds\n"
        "round           1    2    3\n"
        "rank 0          .  0>1  0>2\n"
        "rank 1 late  0>0+  1>2    .\n"
        "rank 2       1>1+    .  1>0\n"
    )


@pytest.mark.parametrize("width", [1, 40, 80, 200])
@pytest.mark.parametrize("name", ["ring", "stragglar", "late_chain"])
def test_text_holds_every_transfer_whatever_the_width(name, width):
    schedule = make_schedule("all_reduce", name, 8)
    text = draw_text(schedule, width)
    assert len(re.findall(r"\d+>\d+", text)) == schedule.num_transfers
    assert len(re.findall(r"\d+>\d+\+", text)) == (schedule.op == 1).sum()
    if width >= 40:
        assert max(map(len, text.splitlines())) <= width


def test_many_chunks_in_one_message_are_a_range_and_many_messages_a_number():
    assert "0..3>4" in draw_text(make_schedule("all_gather", "rhd", 8))
    assert "[7]" in draw_text(make_schedule("all_to_all", "allpairs", 8))


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_svg_is_well_formed(world_size):
    schedule = make_schedule("all_reduce", "bruck", world_size)
    root = ElementTree.fromstring(draw_svg(schedule))
    arrows = [line for line in root.iter("{http://www.w3.org/2000/svg}line") if "marker-end" in line.attrib]
    assert len(arrows) == sum(len({transfer[:2] for transfer in transfers}) for transfers in schedule.rounds)


def test_labels_of_a_round_do_not_cover_each_other():
    """Of 11 ranks that all send: each names its chunk on its own lane, within its own column."""
    schedule = make_schedule("all_reduce", "late_join", 11, 32, late_rank=4)
    root = ElementTree.fromstring(draw_svg(schedule))
    boxes = [
        (float(box.get("x")), float(box.get("y")), float(box.get("width")))
        for box in root.iter("{http://www.w3.org/2000/svg}rect")
        if box.get("fill-opacity")
    ]
    messages = sum(
        len({(transfer.src, transfer.dst) for transfer in schedule.round(i)}) for i in range(schedule.num_rounds)
    )
    assert len(boxes) == messages
    boxes.sort(key=lambda box: (box[1], box[0]))
    assert all(y1 != y2 or x1 + w1 <= x2 for (x1, y1, w1), (x2, y2, _) in itertools.pairwise(boxes))


def test_in_a_notebook_a_schedule_is_its_drawing_and_one_line():
    schedule = make_schedule("all_reduce", "ring", 4)
    assert schedule._repr_svg_() == draw_svg(schedule)
    assert repr(schedule) == "CollectiveSchedule(ring_all_reduce(world_size=4), 6 rounds, 4 chunks, 24 transfers)"
    assert make_schedule("all_reduce", "ring", 128)._repr_svg_() is None
