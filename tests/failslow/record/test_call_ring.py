"""The call log: what was written is read once, in order, whatever the writer does meanwhile."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanterne.failslow.record import recorder as recording
from lanterne.failslow.record.call_ring import (
    HEADER_NBYTES,
    MAX_NAMES,
    RECORD,
    RecordedCall,
    RingReader,
    RingWriter,
)
from lanterne.failslow.record.recorder import Recorder


def write(writer, *indices):
    for i in indices:
        writer.channel(f"call {i % 3}", 4, 7)(8 * i, float(i), i + 0.5)


def expected(*indices):
    return [RecordedCall(f"call {i % 3}", 4, 7, 8 * i, float(i), i + 0.5) for i in indices]


def test_round_trip(tmp_path):
    path = tmp_path / "rank-0-1.calls"
    writer = RingWriter(path, {"rank": 0, "boot": "b"}, 16)
    reader = RingReader(path)
    assert reader.header["rank"] == 0 and reader.take() == [] and not reader.ended
    write(writer, 1, 2, 3)
    assert reader.take() == expected(1, 2, 3)
    assert reader.take() == []
    write(writer, *range(4, 19))
    assert reader.take() == expected(*range(4, 19))
    writer.end()
    assert reader.ended and reader.lost == 0


def test_a_log_of_larger_records_is_refused(tmp_path):
    RingWriter(tmp_path / "calls", {}, 16)
    content = (tmp_path / "calls").read_bytes()
    (tmp_path / "calls").write_bytes(content.replace(b'"record_nbytes": 48', b'"record_nbytes": 56'))
    with pytest.raises(ValueError, match="got records of 56 bytes"):
        RingReader(tmp_path / "calls")


@given(batches=st.lists(st.integers(0, 40), max_size=12))
def test_every_call_is_read_or_counted_as_lost(tmp_path_factory, batches):
    path = tmp_path_factory.mktemp("ring") / "calls"
    writer, written, read = RingWriter(path, {}, 16), 0, []
    reader = RingReader(path)
    for batch in batches:
        write(writer, *range(written, written + batch))
        written += batch
        read += [call.nbytes // 8 for call in reader.take()]
    assert read == sorted(set(read))
    assert len(read) + reader.lost == written
    assert max(batches, default=0) > 16 or reader.lost == 0
    assert not written or read[-1] == written - 1


def test_the_size_is_fixed(tmp_path):
    path = tmp_path / "calls"
    writer = RingWriter(path, {}, 32)
    before = path.stat().st_size
    write(writer, *range(1000))
    assert path.stat().st_size == before < 32 * RECORD.size + 8192


def test_threads_share_a_writer(tmp_path):
    writer = RingWriter(tmp_path / "calls", {}, 4096)
    threads = [threading.Thread(target=write, args=(writer, *range(k, 1000, 4))) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = RingReader(tmp_path / "calls").take()
    assert sorted(call.nbytes // 8 for call in found) == list(range(1000))


def test_names_beyond_the_last_share_one(tmp_path):
    writer = RingWriter(tmp_path / "calls", {}, 256)
    for i in range(MAX_NAMES + 20):
        writer.channel(f"name {i}" + "x" * 99, 1, 1)(1, 0.0, 0.0)
    names = [call.name for call in RingReader(tmp_path / "calls").take()]
    assert len(names) == MAX_NAMES + 20
    assert len(set(names)) == MAX_NAMES
    assert names[0].startswith("name 0x")
    shared = RingWriter(tmp_path / "shared", {}, 256)
    for name in [*map(str, range(MAX_NAMES - 1)), "reduce_scatter", "send"]:
        shared.channel(name, 1, 1)(1, 0.0, 0.0)
    assert RingReader(tmp_path / "shared").take()[-1].name == "send"


def test_a_name_is_found_by_its_own_number_not_by_that_of_one_that_ends_with_it(tmp_path):
    writer = RingWriter(tmp_path / "calls", {}, 16)
    for name in ("my forward", "forward"):
        writer.channel(name, 4, 7)(8, 0.0, 1.0)
    reader = RingReader(tmp_path / "calls")
    found = [reader.number(name) for name in ("my forward", "forward", "for", "ward")]
    assert found[2:] == [None, None] and [reader.name(number) for number in found[:2]] == ["my forward", "forward"]


def test_what_a_killed_writer_wrote_is_there(tmp_path):
    path = tmp_path / "calls"
    program = f"""import os, signal
from lanterne.failslow.record.call_ring import RingWriter
writer = RingWriter({str(path)!r}, {{"rank": 3}})
for i in range(100):
    writer.channel("a", 2, 0)(i, i, i)
os.kill(os.getpid(), signal.SIGKILL)"""
    result = subprocess.run([sys.executable, "-c", program], check=False, cwd=os.getcwd(), timeout=60)
    assert result.returncode == -signal.SIGKILL
    reader = RingReader(path)
    assert [call.nbytes for call in reader.take()] == list(range(100))
    assert not reader.ended


def test_bad_headers(tmp_path):
    with pytest.raises(ValueError, match="header"):
        RingWriter(tmp_path / "calls", {"program": "x" * 5000})
    (tmp_path / "other").write_bytes(b"no call log" * 1000)
    with pytest.raises(ValueError):
        RingReader(tmp_path / "other")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(ValueError):
        RingReader(tmp_path / "empty")


def test_a_log_that_is_cut_off_between_records_is_refused(tmp_path):
    path = tmp_path / "calls"
    write(RingWriter(path, {}, 16), 1, 2, 3)
    path.write_bytes(path.read_bytes()[: HEADER_NBYTES + 3 * RECORD.size])
    with pytest.raises(ValueError, match="for 16 records: it is cut off"):
        RingReader(path)


def test_a_record_whose_number_is_rubbish_ends_what_is_read(tmp_path):
    path = tmp_path / "calls"
    write(RingWriter(path, {}, 16), 1, 2, 3)
    content = bytearray(path.read_bytes())
    content[HEADER_NBYTES + 2 * RECORD.size] = 9
    path.write_bytes(content)
    reader = RingReader(path)
    assert reader.take() == expected(1, 2) and reader.lost == 0


def test_what_is_known_later_of_calls_that_were_queued(tmp_path):
    """When they began, which is told; and which of those that have ended was made last."""
    path = tmp_path / "calls"
    writer = RingWriter(path, {}, 16)
    reader, channel = RingReader(path), writer.channel("all_reduce", 4, 7)
    places = [channel.begin(8, 1.0), channel.begin(8, 2.0), channel.begin(8, 3.0)]
    assert reader.take() == [] and (reader.latest, reader.timed) == (-1, 0)
    channel.begun(places[1], 7.0)
    channel.end(places[1], 9.0)
    assert reader.take() == [RecordedCall("all_reduce", 4, 7, 8, 7.0, 9.0)]
    assert (reader.latest, reader.timed, sorted(reader.open)) == (1, 1, [0, 2])
    channel.end(places[0], 9.5)
    assert [call.start_s for call in reader.take()] == [1.0] and reader.latest == 1
    write(writer, *range(20))
    # Its place is another's by now.
    channel.begun(places[2], 4.0)
    assert {8 * call.start_s - call.nbytes for call in reader.take()} == {0.0} and reader.timed == 1


def test_a_log_for_which_there_is_no_room_is_none(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", refuse)
    recorder = Recorder(tmp_path)
    for _ in range(2):
        recorder.channel(0, "all_reduce", 2, 0)(8, 1.0, 2.0)
    recorder.end()
    assert not [*tmp_path.glob("rank-*")]


@pytest.mark.parametrize("nbytes", [0, 40, HEADER_NBYTES - 1, HEADER_NBYTES, HEADER_NBYTES + 7])
def test_part_of_a_log_is_refused_and_one_that_is_cut_short_is_read_no_further(tmp_path, nbytes):
    path = tmp_path / "rank-0-1.calls"
    write(RingWriter(path, {"rank": 0}, 16), 1, 2, 3)
    (tmp_path / "part").write_bytes(path.read_bytes()[:nbytes])
    with pytest.raises(ValueError):
        RingReader(tmp_path / "part")
    reader = RingReader(path)
    os.truncate(path, nbytes)
    with pytest.raises(ValueError, match="cut short"):
        reader.take()


@pytest.mark.parametrize("header", [[], {"capacity": "x"}, {"capacity": 0}, {"capacity": -1}])
def test_a_header_that_says_no_capacity_is_refused(tmp_path, header):
    path = tmp_path / "calls"
    RingWriter(path, {"rank": 0}, 16)
    content = path.read_bytes()
    path.write_bytes(json.dumps(header).encode().ljust(4000, b"\0") + content[4000:])
    with pytest.raises(ValueError, match="call log"):
        RingReader(path)


def test_threads_of_a_rank_write_one_log(tmp_path, monkeypatch):
    made, make = [], recording.RingWriter

    def slowly(*args):
        made.append(args)
        time.sleep(0.05)
        return make(*args)

    monkeypatch.setattr(recording, "RingWriter", slowly)
    recorder = Recorder(tmp_path)
    threads = [
        threading.Thread(target=lambda name=name: recorder.channel(0, name, 2, 0)(8, 1.0, 2.0)) for name in ("a", "b")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    recorder.end()
    (path,) = tmp_path.glob("rank-*.calls")
    assert len(made) == 1 and {call.name for call in RingReader(path).take()} == {"a", "b"}


def test_arguments_of_any_letters_fit_into_a_header(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["train.py", "\N{SNOWMAN}\U0001f600\udcff" * 400])
    recorder = Recorder(tmp_path)
    recorder.channel(0, "all_reduce", 2, 0)(8, 1.0, 2.0)
    recorder.end()
    (path,) = tmp_path.glob("rank-*.calls")
    assert RingReader(path).header["program"].startswith("train.py")
