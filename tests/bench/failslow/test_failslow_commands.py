"""detect, locate and rebalance as a user calls them: the JSON contracts, tables, pictures, and one-line errors."""

import gzip
import io
import json
from contextlib import suppress
from itertools import accumulate

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lanterne.bench.cli import main
from lanterne.failslow.locate.trace import REQUIRED

KINDS = {"onset", "relief", "change"}


def write_csv(path, values, header="seconds"):
    path.write_text(header + "\n" + "".join(f"{value}\n" for value in values))
    return str(path)


@pytest.fixture
def incident(tmp_path):
    """100 healthy rows, 40 slow ones, 60 healthy ones."""
    return write_csv(tmp_path / "a.csv", [1.0] * 100 + [1.5] * 40 + [1.0] * 60)


def run_json(capsys, *argv):
    assert main([*argv, "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


def test_detect_json(capsys, incident, tmp_path):
    quiet = write_csv(tmp_path / "b.csv", [2.0] * 50)
    document = run_json(capsys, "detect", incident, quiet)
    assert document["schema_version"] == 1
    first, second = document["series"]
    assert (first["file"], second["file"]) == (incident, quiet)
    assert [set(e) for e in first["events"]] == [{"kind", "index", "provisional_at", "confirmed_at", "ratio"}] * 2
    assert {e["kind"] for e in first["events"]} <= KINDS
    assert first["incidents"] == [{"onset": 100, "relief": 140, "ratio": pytest.approx(1.5), "confirmed_at": 104}]
    assert (second["events"], second["incidents"]) == ([], [])


def test_detect_open_incident_has_null_relief(capsys, tmp_path):
    path = write_csv(tmp_path / "a.csv", [1.0] * 100 + [1.5] * 40)
    assert run_json(capsys, "detect", path)["series"][0]["incidents"][0]["relief"] is None


def test_detect_table_and_plot(capsys, incident, tmp_path):
    picture = tmp_path / "p.png"
    assert main(["detect", incident, "--plot", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "a.csv    100     140   1.50        104" in out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_detect_column(capsys, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("step,ms\n" + "".join(f"{i},{2.0 if 60 <= i < 90 else 1.0}\n" for i in range(150)))
    assert run_json(capsys, "detect", str(path), "--column", "ms")["series"][0]["incidents"][0]["onset"] == 60


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "got an empty file"),
        ("seconds\n", "a header and no rows"),
        ("time\n1\n", "no column 'seconds', expected one of: time"),
        ("seconds\n1\n-2\n", "row 1, column seconds: got '-2'"),
        ("seconds\n0\n0\n", "got 2 rows without a number"),
        ("seconds\nabc\n", "row 0, column seconds: got 'abc'"),
        ("seconds\n" + "1\n" * 60 + "\n-1\n", "row 61, column seconds: got '-1'"),
        ("seconds\ninf\n", "row 0, column seconds: got 'inf'"),
        ("seconds\nnan\n\nNaN\n", "got 3 rows without a number"),
        ("step,seconds\n2,1\n1,1\n", "got step 1 after step 2"),
        ("step,seconds\nx,1\n", "column step: got 'x'"),
        ("step,seconds\nnan,1\n2,1\n", "row 0, column step: got 'nan'"),
        ("seconds\n1,05\n", "row 0: got 2 fields, expected 1 as in the header (a decimal comma?)"),
        ("seconds,seconds\n1,2\n", "several columns 'seconds'"),
        ("time\n1\n", "(--column, and --unit: s, ms, us, ns, min)"),
        ("forward_ms,backward_ms\n1,2\n", "no column 'seconds', expected one of: forward_ms, backward_ms (--column)"),
        ("elapsed time per iteration (ms): -1.0\n", "line 1: got '-1.0', expected a positive number"),
        ('step_ms\n"1,025.8"\n', "row 0, column step_ms: got '1,025.8', expected a positive time without commas"),
        ("step;step_ms\n0;1025,8\n", "column step_ms: got '1025,8', expected a positive time with a decimal point"),
        ("seconds\n1\n1.02s\n", "row 1, column seconds: got '1.02s', expected a positive time without its unit"),
        ("ended_at\n2026-01-31T10:00:00Z\n", "row 0, column ended_at: got '2026-01-31T10:00:00Z', expected a number"),
    ],
)
def test_detect_bad_input(capsys, tmp_path, content, text):
    path = tmp_path / "bad.csv"
    path.write_text(content)
    assert main(["detect", str(path)]) == 2
    err = capsys.readouterr().err
    assert text in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "content",
    [
        "root:x:0:0:root:/root:/bin/bash\nbin:x:2:2:bin:/bin:/usr/sbin/nologin\n",
        "secret\n",
        "secret,password\none,two\n",
        "secret,password\n1\n",
        "1.5,secret\n1.5,2\n",
        "secret,password\n1secret,two\n",
        "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n",
        "secret 1: took 3 seconds\nsecret 2: took 4 seconds\n",
    ],
)
def test_detect_tells_nothing_from_what_is_no_table_of_numbers(capsys, tmp_path, content):
    path = tmp_path / "some.txt"
    path.write_text(content)
    assert main(["detect", str(path)]) == 2
    err = capsys.readouterr().err.replace(str(path), "")
    assert "got a first line that does not look like column names" in err and "expected CSV with a header" in err
    assert err.count("\n") == 1 and not any(part in err for part in ("root", "secret", "PRIVATE", "1.5"))


SLOW_ROWS = [1.5 if 60 <= i < 90 else 1.0 for i in range(150)]


LOST = (7, 60, 61, 75, 90)
NOTED = "5 of 150 rows have no time, row 7 the first: left out"


@pytest.mark.parametrize(
    ("head", "form", "lost"),
    [
        ("seconds\n", "{s}", ""),
        ("seconds\n", "{s}", "nan"),
        ("step,seconds\n", "{i},{s}", ""),
        ("step,seconds\n", "{i},{s}", " NaN "),
        ("", "iter {i}: loss 1, time {s}ms", "nan"),
    ],
)
def test_detect_leaves_out_rows_without_a_time_and_keeps_their_numbers(capsys, tmp_path, head, form, lost):
    path = tmp_path / "a.csv"
    rows = [form.format(i=i, s=lost if i in LOST else time_s) for i, time_s in enumerate(SLOW_ROWS)]
    path.write_text(head + "\n".join([*rows, "", ""]))
    (found,) = run_json(capsys, "detect", str(path))["series"]
    assert found["rows"] == 150
    # Of a level that begins or ends with rows that are lost, the first row that is there.
    assert [(one["onset"], one["relief"]) for one in found["incidents"]] == [(62, 91)]
    assert {event["index"] for event in found["events"]} == {62, 91}
    assert main(["detect", str(path)]) == 0
    assert NOTED in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (gzip.compress(b"seconds\n1\n"), "got a gzip file, expected it unpacked: zcat FILE | lanterne detect -"),
        ("seconds\n1\n".encode("utf-16"), "got text in UTF-16, expected UTF-8: iconv -f UTF-16"),
        (b"PAR1\x15\x04\xff", "got what is no UTF-8 text, expected CSV or a log"),
    ],
)
def test_detect_says_what_a_file_is_that_is_no_text(capsys, tmp_path, content, text):
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    assert main(["detect", str(path)]) == 2
    err = capsys.readouterr().err
    assert f"{path}: {text}" in err and err.count("\n") == 1 and "codec" not in err


@pytest.mark.parametrize(
    ("head", "cut"), [("step,seconds\n", '40,"1.0'), ("seconds\n", '"1.0'), ("seconds\n", '"1.0\n')]
)
def test_detect_takes_no_value_from_a_cell_that_is_cut(capsys, tmp_path, head, cut):
    path = tmp_path / "a.csv"
    path.write_text(head + "".join(f"{i},1.0\n" if "step" in head else "1.0\n" for i in range(40)) + cut)
    assert main(["detect", str(path)]) == 0
    assert "1 of 41 rows have no time, row 40 the first: left out" in capsys.readouterr().out


def test_detect_timestamps_with_one_lost(capsys, tmp_path):
    stamps = list(accumulate(SLOW_ROWS, initial=100.0))
    path = tmp_path / "a.csv"
    path.write_text("seconds\n" + "".join(f"{'' if i == 30 else stamp}\n" for i, stamp in enumerate(stamps)))
    (found,) = run_json(capsys, "detect", str(path), "--timestamps")["series"]
    assert (found["rows"], [(one["onset"], one["relief"]) for one in found["incidents"]]) == (150, [(60, 90)])


def incident_rows(capsys, *argv):
    (found,) = run_json(capsys, "detect", *map(str, argv))["series"]
    return [(i["onset"], i["relief"]) for i in found["incidents"]]


@pytest.mark.parametrize(
    ("header", "separator"),
    [
        ("step,step_time_ms", ","), ("rank;iterTime(us)", ";"), ("i\tDuration [s]", "\t"), ("loss,elapsed_sec", ","),
        ("data_ms,iteration_ms", ","),
    ],
)  # fmt: skip
def test_detect_finds_the_column_that_names_a_unit(capsys, tmp_path, header, separator):
    path = tmp_path / "a.csv"
    rows = "".join(f"{i + 1}{separator}{1000 * time_s}\n" for i, time_s in enumerate(SLOW_ROWS))
    path.write_text(f"{header}\n{rows}")
    assert incident_rows(capsys, path) == [(60, 90)]
    assert main(["detect", str(path)]) == 0
    assert f"column {header.split(separator)[1]!r}, in" in capsys.readouterr().out


LOGS = {
    "megatron": " [2026-01-01 10:00:00] iteration {i:8}/ 500000 | consumed samples: {i} |"
    " elapsed time per iteration (ms): {ms:.1f} | learning rate: 1E-4 |",
    "torchtitan": "[rank0]:2026-01-01 10:00:00,1 - root - INFO - \x1b[31mstep: {i:2}  \x1b[32mloss:  7.1"
    "  \x1b[33mmemory:  3.31GiB(4.18%)  \x1b[34mtps: {tps:,}  \x1b[36mtflops: 12.3\x1b[0m",
    "nanogpt": "iter {i}: loss 2.31, time {ms:.2f}ms, mfu 30.00%",
    "bloom": " [default7]: iteration {i:8}/  115311 | elapsed time per iteration (s): {s:.4f} | lm loss: 2.4E+00 |",
    "nemo": "Epoch 0: : {i}%|##  | {i}/150 [10:48<00:00, reduced_train_loss=0.0172, train_step_timing in s={s:.4f}]",
    "litgpt": "Epoch 1 | iter {i} step 1 | loss train: 2.2 | iter time: {ms:.2f} ms (step)",
    "deepspeed": "[INFO] epoch=0/micro_step={i}/global_step={i}, RunningAvgSamplesPerSec=5, CurrSamplesPerSec={tps}",
    "nemo 2": "Training epoch 0, iteration {i}/150 | global_batch_size: 128 | train_step_timing in s: {s:.3f}",
    "deepspeed pipeline": "steps: {i} loss: 2.12 iter time (s): {s:.3f} samples/sec: {tps}",
    "tqdm": "train:  40%|####      | {i}/150 [00:10<05:00,  {s:.4f}s/it]",
    "rich": "Epoch 0/2  ━━━━╸━━━━  {i}/150 0:{i}:10 • 0:10:00 {rate:.5f}it/s v_num: 0.000 train_loss: 1.2",
    "json": '{{"loss": 2.1, "learning_rate": 1e-4, "epoch": 0.1, "step": {i}, "step_time": {s:.4f}}}',
    "json rate": '{{"loss": 2.1, "step": {i}, "tokens_per_second": 7, "train_steps_per_second": "{rate:.5f}"}}',
    "dict": "{{'loss': 2.1, 'step': {i}, 'iteration_ms': {ms:.2f}, 'epoch': 0.1}}",
}


def standard_input(data):
    """A text stream over bytes, as the interpreter makes it."""
    return io.TextIOWrapper(io.BufferedReader(io.BytesIO(data)))


def write_log(path, form):
    lines = ["starting", "iteration 0 is long"]
    for i, time_s in enumerate(SLOW_ROWS, start=1):
        numbers = {"i": i, "s": time_s, "ms": 1e3 * time_s, "tps": round(51234 / time_s), "rate": 1 / time_s}
        lines += [form.format(**numbers), "saved a checkpoint in 3000 ms"]
    path.write_text("\n".join(lines))
    return str(path)


@pytest.mark.parametrize("name", LOGS)
def test_detect_reads_logs(capsys, tmp_path, name):
    path = write_log(tmp_path / "train.log", LOGS[name])
    assert incident_rows(capsys, path) == [(60, 90)]
    assert main(["detect", path]) == 0
    assert "of 150 lines of 302, of the form of" in capsys.readouterr().out


def test_detect_reads_lines_that_carriage_returns_end(capsys, tmp_path):
    path = tmp_path / "bar.log"
    bar = "\r".join(LOGS["nemo"].format(i=i, s=time_s) for i, time_s in enumerate(SLOW_ROWS))
    path.write_bytes(b"\xef\xbb\xbf\r" + bar.encode())
    assert incident_rows(capsys, str(path)) == [(60, 90)]


def test_the_bar_of_training_counts_once_a_step_beside_others(capsys, tmp_path):
    bar = "Epoch {e}:  {i}%|##{hashes}| {i}/150 [00:10<05:00, {s:.4f}s/it]"
    lines = ["Sanity Checking DataLoader 0:  50%|##  | 1/2 [00:10<05:00, 9.9s/it]"]
    for i, time_s in enumerate(SLOW_ROWS):
        lines += [bar.format(e=i // 50, i=i, hashes="#" * (i % 7), s=time_s)] * 2
        lines += [
            f"Validation DataLoader 0: {j}%|# | {j}/20 [00:01<00:01, 40it/s]" for j in range(20 if i == 100 else 0)
        ]
    path = tmp_path / "bars.log"
    path.write_text("\r".join(lines))
    assert incident_rows(capsys, str(path)) == [(60, 90)]


def test_records_without_a_time_are_told_so_and_one_that_is_cut_costs_a_row(capsys, tmp_path):
    path = tmp_path / "trainer.jsonl"
    path.write_text('{"loss": 2.0, "step": 1}\n' * 40)
    assert main(["detect", str(path)]) == 2
    assert "got records of loss, step, expected a time such as step_time" in capsys.readouterr().err
    lines = [json.dumps({"step": i, "step_time": time_s}) for i, time_s in enumerate(SLOW_ROWS)]
    path.write_text("\n".join([*lines[:20], '{"eval_loss": 2.0}', lines[20][:-4], *lines[21:]]))
    assert incident_rows(capsys, str(path)) == [(60, 90)]
    path.write_text("\n".join([*lines[:20], lines[20][:16], *lines[21:]]))
    assert main(["detect", str(path)]) == 0
    assert "1 of 150 rows have no time, row 20" in capsys.readouterr().out


@pytest.mark.parametrize("stream", [False, True], ids=["file", "standard input"])
def test_one_bad_byte_and_one_zero_cost_their_rows(capsys, tmp_path, monkeypatch, stream):
    times_ms = [0.0 if i == 9 else 1e3 * time_s for i, time_s in enumerate(SLOW_ROWS)]
    lines = [f"iteration {i} | elapsed time per iteration (ms): {time_ms:.1f} |" for i, time_ms in enumerate(times_ms)]
    data = "\n".join(lines).encode().replace(b"iteration 7 |", b"it\xe9ration 7 |")
    path = tmp_path / "train.log"
    path.write_bytes(data)
    monkeypatch.setattr("sys.stdin", standard_input(data))
    assert main(["detect", "-" if stream else str(path)]) == 0
    out = capsys.readouterr().out
    assert "1 line with bytes that are no UTF-8 text" in out and "1 of 150 rows have no time, row 9" in out
    assert " 60      90 " in out


def test_another_batch_size_is_no_slowness(capsys, tmp_path):
    sizes = [256] * 60 + [512] * 60 + [1024] * 80
    lines = [
        f"iteration {i} | elapsed time per iteration (ms): {size * (1.5 if i >= 160 else 1.0)} | batch size: {size} |"
        for i, size in enumerate(sizes)
    ]
    path = tmp_path / "ramp.log"
    path.write_text("\n".join(lines))
    assert incident_rows(capsys, str(path)) == [(160, None)]


def test_detect_reads_lines_of_a_pattern(capsys, tmp_path):
    path = write_log(tmp_path / "own.log", "epoch 1 batch {i} done in {ms:.3f} msec at {tps} tokens/s")
    assert incident_rows(capsys, path, "--pattern", r"done in (\S+) msec", "--unit", "ms") == [(60, 90)]
    assert incident_rows(capsys, path, "--pattern", r"at (\d+) tokens", "--rate") == [(60, 90)]


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--pattern", "("], "--pattern: got '(', expected a regular expression"),
        (["--pattern", "ms"], "expected a group around the number"),
        (["--pattern", "nothing like (this)"], "no line of 302 matches"),
        (["--pattern", "(done)"], "line 3: got 'done', expected a positive number"),
        (["--rate"], "--rate: expected with --pattern"),
        (["--pattern", "(.)", "--rate", "--unit", "ms"], "--unit: got ms, of times, expected none with --rate"),
        (["--unit", "parsec"], "parsec"),
        (["--pattern", "(x)", "--column", "x"], "expected without --column"),
    ],
)
def test_detect_bad_patterns(capsys, tmp_path, argv, text):
    path = write_log(tmp_path / "own.log", "batch {i} done in {ms:.3f} msec")
    with suppress(SystemExit):
        assert main(["detect", path, *argv]) == 2
    err = capsys.readouterr().err
    assert text in err and err.strip().splitlines()[-1].startswith("lanterne")


def test_detect_a_folder_is_called_a_folder(capsys, tmp_path):
    assert main(["detect", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"lanterne: {tmp_path}: got a folder, expected a file\n"


@pytest.mark.parametrize("content", ["", "seconds\n1\n-1\n", "seconds\n" + "1\n" * 40])
def test_detect_a_newline_in_a_name_stays_in_one_line(capsys, tmp_path, content):
    path = tmp_path / "two\nlines.csv"
    path.write_text(content)
    main(["detect", str(path)])
    told = capsys.readouterr()
    (line,) = (told.err + told.out).splitlines()
    assert "two\\nlines.csv" in line


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.one_of(
        st.text(), st.binary(), st.lists(st.sampled_from(["seconds", "1", "1e9", "", ",", "\n"])).map("".join)
    )
)
def test_detect_never_fails_but_in_one_line(capsys, tmp_path, content):
    path = tmp_path / "any.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    code = main(["detect", str(path)])
    err = capsys.readouterr().err
    assert (code, err.count("\n")) in ((0, 0), (2, 1))


def test_detect_standard_input(capsys, monkeypatch, incident):
    with open(incident, newline="") as file:
        monkeypatch.setattr("sys.stdin", standard_input(file.read().encode()))
    (found,) = run_json(capsys, "detect", "-")["series"]
    assert (found["file"], found["incidents"][0]["onset"]) == ("-", 100)


def test_detect_standard_input_is_read_once_and_named(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", standard_input(b"seconds\n1\n-1\n"))
    assert main(["detect", "-", "-"]) == 2
    assert main(["detect", "-"]) == 2
    assert [line.split(": ")[1] for line in capsys.readouterr().err.splitlines()] == ["FILE", "standard input"]


@pytest.fixture
def ends(tmp_path):
    """When the iterations of a job ended: 100 of 1 s, 40 of 1.5 s, and one of five hours for a clock set forward."""
    times = [1.0] * 100 + [1.5] * 40 + [1.0] * 30 + [18000.0] + [1.0] * 30
    return write_csv(tmp_path / "ends.csv", [1.7e9 + sum(times[:row]) for row in range(len(times) + 1)], "end")


def test_detect_timestamps(capsys, ends):
    (found,) = run_json(capsys, "detect", ends, "--column", "end", "--timestamps")["series"]
    assert [(i["onset"], i["relief"]) for i in found["incidents"]] == [(100, 140)]
    assert found["rows"] == 201


def test_detect_says_what_looks_like_timestamps(capsys, ends):
    assert main(["detect", ends, "--column", "end"]) == 0
    assert "timestamps? --timestamps takes differences" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("values", "text"),
    [([5, 6, 2], "row 2: got 2.0 after 6.0"), ([5, 5], "got 5.0 after 5.0"), ([5], "got one row")],
)
def test_detect_timestamps_that_cannot_be(capsys, tmp_path, values, text):
    assert main(["detect", write_csv(tmp_path / "a.csv", values), "--timestamps"]) == 2
    err = capsys.readouterr().err
    assert text in err and err.count("\n") == 1


def test_rebalance_json(capsys):
    document = run_json(capsys, "rebalance", "--times", "1.0,1.0,1.6,1.0", "--microbatches", "64")
    assert sum(document["microbatches"]) == 64
    assert document["makespan"] == 18.0
    assert document["solve_s"] >= 0.0


@pytest.mark.parametrize(
    "argv",
    [
        ["--times", "1,x"],
        ["--times", "1,2ms"],
        ["--times", "1,0"],
        ["--times", ""],
        ["--times", "1,1", "--multiple-of", "5"],
    ],
)
def test_rebalance_bad_input(capsys, argv):
    assert main(["rebalance", *argv, "--microbatches", "4"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("option", ["--microbatches", "--multiple-of", "--stages"])
@pytest.mark.parametrize("count", [str(10**9 + 1), "1" * 18, "1" * 40])
def test_rebalance_refuses_counts_that_it_could_not_count(capsys, option, count):
    words = {"--microbatches": "4"} | {option: count}
    assert main(["rebalance", "--times", "1,2", *(word for pair in words.items() for word in pair)]) == 2
    err = capsys.readouterr().err
    assert f"{option}: got" in err and "expected a whole number of at most" in err and err.count("\n") == 1


def test_rebalance_says_what_a_time_may_be(capsys):
    assert main(["rebalance", "--times", "1.0,x", "--microbatches", "4"]) == 2
    assert "--times: got 'x', expected a number, or a time with its unit" in capsys.readouterr().err


def trace_csv(path, slow=1.0, column="duration"):
    """Two replicas of one stage, 8 steps of 4 microbatches; rank 1 takes `slow` times as long."""
    lines = [f"dp_rank,stage,rank,step,optype,start_ts,{column},mb_id"]
    for step in range(8):
        for rank in range(2):
            factor = slow if rank == 1 else 1.0
            for m in range(4):
                lines.append(f"{rank},0,{rank},{step},forward-compute,{3 * m * factor},{factor},{m}")
                lines.append(f"{rank},0,{rank},{step},backward-compute,{(3 * m + 1) * factor},{2 * factor},{m}")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_locate_json(capsys, tmp_path):
    document = run_json(capsys, "locate", trace_csv(tmp_path / "t.csv", slow=1.5))
    (verdict,) = document["verdicts"]
    assert (verdict["cause"], verdict["ranks"], verdict["stage"]) == ("worker", [1], 0)
    assert verdict["saving"] == pytest.approx(1 / 3)
    assert verdict["evidence"]["workers"][0]["slowdown"] == pytest.approx(1.5)


def test_locate_nothing_and_meta(capsys, tmp_path):
    meta = tmp_path / "meta.yaml"
    meta.write_text("trial_name: X\ndp_size: 3\npp_size: 1\n")
    assert main(["locate", trace_csv(tmp_path / "t.csv"), "--meta", str(meta)]) == 0
    out = capsys.readouterr().out
    assert "the layout has 3 x 1 workers, compared are 2 x 1" in out
    assert "none" in out


@pytest.mark.parametrize("meta", ["dp_size 3\n", "secret\n", None])
def test_locate_bad_meta(capsys, tmp_path, meta):
    path = tmp_path / "meta.yaml"
    if meta is not None:
        path.write_text(meta)
    assert main(["locate", trace_csv(tmp_path / "t.csv"), "--meta", str(path)]) == 2
    err = capsys.readouterr().err.replace(str(path), "")
    assert err.count("\n") == 1 and "secret" not in err


@pytest.mark.parametrize(
    ("meta", "text"),
    [
        ("dp_size: two\n", "meta.yaml: line 1, dp_size: got two, expected a whole number of at least 1"),
        ("pp_size: 4\ndp_size: -2\n", "line 2, dp_size: got -2, expected"),
        ("dp_size: 0\n", "dp_size: got 0, expected"),
        ("{dp_size: [1, pp_size: 4}\n", "dp_size: got [1, expected"),
        ("dp_size:\n", "dp_size: got nothing, expected"),
        ("dp_size: !!python/object/apply:os.abort []\n", "dp_size: got !!python/object/apply:os.abort [], expected"),
        ("tp_size: 2\n", "which tells none of them, expected dp_size or pp_size"),
    ],
)
def test_locate_meta_that_is_no_layout(capsys, tmp_path, meta, text):
    path = tmp_path / "meta.yaml"
    path.write_text(meta)
    assert main(["locate", trace_csv(tmp_path / "t.csv"), "--meta", str(path)]) == 2
    err = capsys.readouterr().err
    assert text in err and err.count("\n") == 1


def test_locate_reads_what_it_may_not_write(capsys, tmp_path):
    assert main(["locate", str(tmp_path)]) == 2
    assert f"{tmp_path}: got 0 files and nothing known in them" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("two\nlines.csv", "step\n1\n"),
        ("two\nlines.json", '[{"step": 1}'),
        ("two\nlines.json", "[" * 100_000),
        ("empty.csv", ""),
        ("empty.json", ""),
        ("nan.csv", ",".join(REQUIRED) + "\n0,0,0,0,forward-compute,0,nan,0\n"),
        ("bytes.bin", "\0\1\2"),
    ],
)
def test_locate_bad_files_are_one_line(capsys, tmp_path, name, content):
    (tmp_path / name).write_text(content)
    assert main(["locate", str(tmp_path / name)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and name.replace("\n", "\\n") in err


def test_locate_a_folder_is_no_layout(capsys, tmp_path):
    assert main(["locate", trace_csv(tmp_path / "t.csv"), "--meta", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_locate_bad_column(capsys, tmp_path):
    assert main(["locate", trace_csv(tmp_path / "t.csv", column="took")]) == 2
    assert "no column duration" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["detect", "locate"])
@pytest.mark.parametrize(
    "content", [",".join(map(str, range(200_000))), "1" * (2 << 20)], ids=["a million columns", "no end of line"]
)
def test_a_line_of_no_end_is_refused(capsys, tmp_path, command, content):
    path = tmp_path / "wide.csv"
    path.write_text(content)
    assert main([command, str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "wide.csv: got a line of over 1048576 characters" in err and len(err) < 200
