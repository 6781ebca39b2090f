"""MSCCL XML read: what we write comes back as a right schedule, programs of other shapes too; what cannot is told."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanterne.collectives.algorithms.catalogue import ALGORITHMS, make_schedule
from lanterne.collectives.schedule.check_schedule import check
from lanterne.collectives.schedule.formats.export_json import to_json
from lanterne.collectives.schedule.formats.export_msccl import to_msccl_xml
from lanterne.collectives.schedule.formats.import_msccl import from_msccl_xml
from lanterne.collectives.schedule.formats.read_schedule import read_schedule
from lanterne.collectives.schedule.ir import REDUCE
from lanterne.collectives.schedule.passes import relabelled
from lanterne.errors import InputError, ScheduleError

MSCCL = ("all_reduce", "reduce", "reduce_scatter", "broadcast", "all_gather", "all_to_all")


def written(line, world_size):
    root = 1 % world_size if line.collective in ("broadcast", "reduce") else None
    return to_msccl_xml(check(make_schedule(line.collective, line.name, world_size, root=root)))


@pytest.mark.parametrize(
    "line",
    [line for line in ALGORITHMS.values() if line.collective in MSCCL],
    ids=lambda line: f"{line.collective}-{line.name}",
)
@pytest.mark.parametrize("world_size", [1, 2, 4, 5])
def test_what_is_written_is_read(line, world_size):
    if line.refuses(world_size):
        pytest.skip(line.refuses(world_size))
    schedule = make_schedule(line.collective, line.name, world_size)
    found = check(relabelled(from_msccl_xml(written(line, world_size)))).schedule
    assert (found.collective, found.algorithm, found.num_chunks) == (line.collective, line.name, schedule.num_chunks)

    def moves(which):
        return sorted(zip(which.src.tolist(), which.dst.tolist(), which.chunk.tolist(), which.op.tolist(), strict=True))

    if schedule.root is None:
        assert moves(found) == moves(schedule)
    assert found.num_transfers == schedule.num_transfers


def test_a_ring_comes_back_round_by_round():
    ring = make_schedule("all_reduce", "ring", 5)
    found = relabelled(from_msccl_xml(to_msccl_xml(check(ring))))
    assert [sorted(each) for each in found.rounds] == [sorted(each) for each in ring.rounds]
    assert found.ports == 1


def program(blocks, **algo):
    """A document of the steps of each block: {rank: [(send, recv, [(type, src, dst, depid, deps)])]}."""
    head = {"name": "mine", "ngpus": len(blocks), "coll": "allreduce", "nchunksperloop": 2, "outofplace": 1} | algo
    lines = ["<algo " + " ".join(f'{key}="{value}"' for key, value in head.items()) + ">"]
    for rank, listed in blocks.items():
        lines.append(f'<gpu id="{rank}" i_chunks="2" o_chunks="2" s_chunks="9">')
        for number, (send, recv, steps) in enumerate(listed):
            lines.append(f'<tb id="{number}" send="{send}" recv="{recv}" chan="0">')
            for at, (kind, src, dst, *wait) in enumerate(steps):
                depid, deps = wait or (-1, -1)
                (srcbuf, srcoff), (dstbuf, dstoff) = src, dst
                lines.append(
                    f'<step s="{at}" type="{kind}" srcbuf="{srcbuf}" srcoff="{srcoff}" dstbuf="{dstbuf}" '
                    f'dstoff="{dstoff}" cnt="1" depid="{depid}" deps="{deps}" hasdep="0"/>'
                )
            lines.append("</tb>")
        lines.append("</gpu>")
    return "\n".join([*lines, "</algo>"])


I0, I1, O0, O1, S0, S1 = ("i", 0), ("i", 1), ("o", 0), ("o", 1), ("s", 0), ("s", 1)


def exchange(rank):
    """All chunks sent to the other rank's scratch, and added there."""
    sends = [("s", I0, S0), ("s", I1, S1)]
    receives = [("r", I0, S0), ("r", I1, S1)]
    adds = [("re", S0, I0, 1, 0), ("re", S1, I1, 1, 1), ("cpy", I0, O0), ("cpy", I1, O1)]
    return [(1 - rank, -1, sends), (-1, 1 - rank, receives), (-1, -1, adds)]


def test_values_that_wait_in_scratch_are_added_where_the_program_adds_them():
    found = check(relabelled(from_msccl_xml(program({rank: exchange(rank) for rank in (0, 1)})))).schedule
    assert [sorted(each) for each in found.rounds] == [
        [(0, 1, 0, REDUCE), (1, 0, 0, REDUCE)],
        [(0, 1, 1, REDUCE), (1, 0, 1, REDUCE)],
    ]


def test_fused_steps_in_place():
    """A reduce to rank 2 on the way, and back: receive, add and send in one step; receive, keep and send."""
    there = [("rrs", I0, I0), ("rrs", I1, I1)]
    blocks = {
        0: [(1, -1, [("s", I0, I0), ("s", I1, I1)]), (-1, 1, [("r", I0, I0), ("r", I1, I1)])],
        1: [(2, 0, there), (0, 2, [("rcs", I0, I0), ("rcs", I1, I1)])],
        2: [(-1, 1, [("rrc", I0, I0), ("rrc", I1, I1)]), (1, -1, [("s", I0, I0, 0, 0), ("s", I1, I1, 0, 1)])],
    }
    found = check(relabelled(from_msccl_xml(program(blocks, inplace=1, outofplace=0)))).schedule
    assert (found.num_rounds, found.num_transfers, found.ports) == (5, 8, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((' coll="allreduce"', ' coll="all"'), "algo.coll: got 'all'"),
        (('type="re"', 'type="add"'), "gpu 0, tb 2, step 0.type: got 'add'"),
        (('depid="1" deps="0"', 'depid="7" deps="0"'), "got depid 7, expected a thread block of this gpu"),
        (('depid="1" deps="0"', 'depid="1" deps="9"'), "gpu 0, tb 2, step 0: waits for ever"),
        (('send="1"', 'send="0"'), "waits for ever"),
        (('send="1"', 'send="2"'), "got send '2', expected -1 to 1"),
        (('srcoff="0"', 'srcoff="x"'), "got srcoff 'x'"),
        (('cnt="1"', 'cnt="99999999999"'), "gpu 0, tb 0, step 0: got cnt"),
        (('nchunksperloop="2"', 'nchunksperloop="3"'), "at the end output 2 of rank 0 lacks its result"),
        (('nchunksperloop="2"', 'nchunksperloop="9999999"'), "got 9999999 chunks for all_reduce, expected"),
        (('type="cpy"', 'type="nop"'), "at the end output 0 of rank 0 lacks its result"),
        (('ngpus="2"', 'ngpus="3"'), "got 2 gpus, expected the 3 of ngpus"),
        (('<gpu id="1"', '<gpu id="0"'), "gpu 0: got it twice"),
        (("<algo", "<!DOCTYPE x><algo"), "got a document type"),
        (("<algo", "<other/><algo"), "got no XML"),
        (('"s" srcoff="0" dstbuf="i" dstoff="0"', '"s" srcoff="0" dstbuf="i" dstoff="1"'), "adds chunk"),
        (('srcbuf="s" srcoff="0" dstbuf="i"', 'srcbuf="s" srcoff="5" dstbuf="i"'), "buffer s holds nothing at 5"),
    ],
)
def test_bad_documents(change, message):
    good = program({rank: exchange(rank) for rank in (0, 1)})
    assert change[0] in good
    with pytest.raises(ScheduleError, match=re.escape(message)):
        from_msccl_xml(good.replace(*change, 1))


def test_two_values_of_a_chunk_are_refused():
    """Rank 0 adds what it got to a copy, and then sends on what it had before."""
    blocks = {rank: exchange(rank) for rank in (0, 1)}
    sends = [("s", I0, S0), ("s", I1, S1), ("s", I0, ("s", 3), 2, 2)]
    adds = [("cpy", I0, O0), ("cpy", I1, O1), ("re", S0, O0, 1, 0), ("re", S1, O1, 1, 1)]
    blocks[0] = [(1, -1, sends), blocks[0][1], (-1, -1, adds)]
    blocks[1][1][2].append(("r", I0, ("s", 3)))
    with pytest.raises(ScheduleError, match="gpu 0, tb 0, step 2: reads an old value of chunk 0"):
        from_msccl_xml(program(blocks))


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_what_is_damaged_is_read_right_or_refused(data):
    """Numbers and words of a document changed: an error in a line, or a schedule that the checker judges."""
    text = program({rank: exchange(rank) for rank in (0, 1)})
    for _ in range(data.draw(st.integers(1, 3))):
        found = list(re.finditer(r'"[^"]*"', text))
        one = data.draw(st.sampled_from(found))
        new = data.draw(st.sampled_from("0 1 2 -1 7 i o s r re rrc rcs cpy x".split()))
        text = f'{text[: one.start()]}"{new}"{text[one.end() :]}'
    try:
        check(relabelled(from_msccl_xml(text)))
    except ScheduleError as error:
        assert "\n" not in str(error)


@given(st.text(max_size=60))
def test_any_text_is_refused(text):
    with pytest.raises(ScheduleError):
        from_msccl_xml(text)


def test_files_are_told_apart_by_how_they_begin(tmp_path):
    ring = make_schedule("all_reduce", "ring", 3)
    one, other = tmp_path / "a", tmp_path / "b"
    one.write_text(str(to_json(ring)).replace("'", '"').replace("None", "null"))
    other.write_text(to_msccl_xml(check(ring)))
    assert read_schedule(one) == ring
    assert check(read_schedule(other)).schedule.num_rounds == 4


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), (b"\xff", "got no JSON"), (b"{", "got no JSON"), (b"<a", "got no XML"), (b"[]", "list")],
)
def test_files_that_hold_no_schedule_are_named(tmp_path, content, message):
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_schedule(path)
    assert str(path) in str(caught.value)
