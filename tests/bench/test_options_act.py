"""Every option that enters a price, a plan or a verdict changes the answer, or is refused before anything is written.

EFFECTS has, for each such command, a call and words that change its answer. REFUSED has calls in which an option has
nothing to act on. A test compares both with the parsers, so that a new option needs a line here.
"""

import json
import shlex
import shutil
from pathlib import Path

import pytest

from lanterne.bench import cli
from lanterne.bench.output.report import OUTPUTS
from lanterne.pipeline import calibrate

EXAMPLES = Path(__file__).parents[2] / "examples"
STAGES = "--stages 4 --microbatches 6 --forward 10ms"
PROBLEM = {
    "--stages": "4 --stages 5",
    "--microbatches": "6 --microbatches 7",
    "--forward": "12ms",
    "--backward-input": "12ms",
    "--backward-weight": "7ms",
    "--latency": "3ms",
    "--link": "1=20ms",
    "--bandwidth": "1=100mbit --message 1M",
    "--message": "1M --bandwidth 1=100mbit",
    "--memory": "2",
}
# Per call: option -> the words behind it. An option with a space behind its first word brings what it needs.
EFFECTS: dict[str, tuple[str, dict[str, str]]] = {
    "schedule": (
        "all_reduce --algorithm late_join -n 4 --delay 1ms",
        {
            "--algorithm": "ring",
            "--ranks": "5",
            "--chunks": "8",
            "--late-rank": "1",
            "--nbytes": "1MiB",
            "--alpha": "9us",
            "--bandwidth": "1GB/s",
            "--gamma": "1GB/s",
            "--delay": "9ms",
        },
    ),
    "schedule broadcast -n 4": ("", {"--root": "2"}),
    "schedule all_reduce --algorithm any_arrival -n 4": ("", {"--arrivals": "0,0.2,0.3,1.1"}),
    "schedule all_reduce": ("", {"--topology": "dgx-2x4", "--list": "", "--format": "json"}),
    "schedule all_reduce --algorithm ring": ("", {"--late-rank": "2 --delay 2ms"}),
    "schedule plan.json": ("", {"--delay": "2ms", "--late-rank": "1 --delay 2ms"}),
    "schedule all_reduce --algorithm outside:unnamed": ("-n 4", {"--delay": "20ms", "--late-rank": "1 --delay 20ms"}),
    "cost": (
        "all_reduce -n 4 --json -",
        {
            "--ranks": "5",
            "--late-rank": "1 --algorithm outside:uneven --delay 1ms",
            "--nbytes": "1MiB",
            "--algorithm": "ring",
            "--alpha": "9us",
            "--bandwidth": "1GB/s",
            "--gamma": "1GB/s",
            "--delay": "9ms",
        },
    ),
    "cost all_reduce --algorithm ring --json -": ("", {"--topology": "dgx-2x4", "--arrivals": "0,0,1.1"}),
    "study": ("topology dgx-2x2 --json -", {"--late": "0,1", "--nbytes": "1KiB", "--algorithm": "ring"}),
    "pipeline plan": (
        f"{STAGES} --json -",
        PROBLEM | {"--scheduler": "gpipe", "--placement": "loop", "--option": "slack=1 --scheduler alternating"},
    ),
    "pipeline plan --json -": (
        f"{STAGES} --link 2=9ms --message 1M --scheduler zb_h1 --calibration h800.json",
        {"--gpu": "A10", "--ranks-per-host": "2", "--delegates": "2"},
    ),
    "pipeline simulate": (
        f"zb.json {STAGES} --json -",
        {name: words for name, words in PROBLEM.items() if name not in ("--stages", "--microbatches")}
        | {"--in-order": "--link 1=30ms", "--queue": "3 --in-order --link 1=30ms", "--jitter": "0.1 --seeds 4"},
    ),
    "pipeline simulate --json -": (f"zb.json {STAGES} --jitter 0.1 --seeds 4", {"--seeds": "9"}),
    "pipeline plan --csv -": (f"{STAGES} --scheduler zb_h1", {"--comms": ""}),
    "pipeline check": (
        f"theirs.csv {STAGES} --json -",
        {name: words for name, words in PROBLEM.items() if name not in ("--stages", "--microbatches", "--memory")},
    ),
    "pipeline sweep": (
        f"{STAGES} --at 0ms,20ms --scheduler 1f1b --json -",
        {name: words for name, words in PROBLEM.items() if name != "--latency"}
        | {
            "--link": "1=20ms --on 0",
            "--over": "microbatches --at 3,4",
            "--at": "0ms,30ms",
            "--on": "1",
            "--scheduler": "zb_h1",
            "--queue": "2 --scheduler 1f1b+in-order",
            "--relative-to": "zb_h1 --scheduler 1f1b,zb_h1",
        },
    ),
    "pipeline partition": (
        "--layers 9 --stages 3 --json -",
        {
            "--layers": "10",
            "--embedding": "0.5",
            "--output": "0.7",
            "--stages": "4",
        },
    ),
    "pipeline partition --json -": ("--times 1,2,3,4,5 --speeds 1,1", {"--times": "9,2,3,4,5", "--speeds": "1,2"}),
    "pipeline partition --layers 4 --json -": (
        "--stages 2 --layer-memory 1GiB --stage-memory 3GiB",
        {"--layer-memory": "3GiB,1GiB,1GiB,1GiB", "--stage-memory": "3GiB,1GiB"},
    ),
    "detect": ("slow.csv --json -", {"--column": "other"}),
    "detect ended.csv --json -": ("--column ended", {"--timestamps": ""}),
    "detect train.log --json -": ("--pattern 'took ([0-9.]+)'", {"--pattern": "'in ([0-9.]+)'", "--rate": ""}),
    "locate": ("trace.csv --json -", {"--meta": "meta.yaml"}),
    "rebalance": (
        "--times 1,2,3,4 --microbatches 16 --json -",
        {"--times": "1,2,3,9", "--microbatches": "20", "--multiple-of": "4", "--stages": "2"},
    ),
    "history": ("hosts.jsonl --json -", {"--host": "b"}),
}

# (call, what the error names). In each an option has nothing to act on.
REFUSED = [
    ("schedule all_reduce --algorithm ring -n 4 --format json --nbytes 1K", "--nbytes"),
    ("schedule all_reduce --algorithm ring -n 4 --format json --delay 2ms", "--delay"),
    ("schedule all_reduce --algorithm ring -n 4 --format json --late-rank 2", "--late-rank"),
    ("schedule all_reduce --arrivals 0,0,1 --delay 2ms", "--delay"),
    ("cost all_reduce --arrivals 0,0,1 --late-rank 2", "--late-rank"),
    ("schedule all_reduce --topology dgx-2x4 --alpha 3us", "--alpha"),
    ("schedule all_reduce --list --root 1", "--root"),
    ("schedule all_reduce -n 4 --root 1", "root"),
    ("schedule plan.json --chunks 3", "--chunks"),
    ("cost all_reduce --topology dgx-2x4 --bandwidth 1GB/s", "--bandwidth"),
    (f"pipeline plan {STAGES} --scheduler gpipe --time-limit 2", "--time-limit"),
    (f"pipeline plan {STAGES} --scheduler gpipe --gpu A10", "--gpu"),
    (f"pipeline plan {STAGES} --scheduler gpipe --case 1", "--case"),
    (f"pipeline plan {STAGES} --scheduler gpipe --bandwidth 1=1gbit", "link_bandwidth"),
    (f"pipeline simulate zb.json {STAGES} --queue 3", "--queue"),
    (f"pipeline simulate zb.json {STAGES} --seeds 3", "--seeds"),
    (f"pipeline simulate zb.json {STAGES} --stages 5", "stage"),
    (f"pipeline simulate zb.json {STAGES} --microbatches 5", "microbatches"),
    (f"pipeline simulate zb.json {STAGES} --jitter 0.1 --in-order", "--in-order"),
    (f"pipeline plan {STAGES} --scheduler zb_h1 --comms 2.13", "--comms"),
    (f"pipeline check theirs.csv {STAGES} --stages 5", "4 ranks"),
    (f"pipeline check theirs.csv {STAGES} --microbatches 5", "microbatches"),
    ("pipeline check theirs.csv --link 1=3", "--link"),
    (f"pipeline check theirs.csv {STAGES} --memory 1", "memory: rank 0 needs 4, over its capacity of 1"),
    (f"pipeline check theirs.csv {STAGES} --case 1", "--case"),
    (f"pipeline sweep {STAGES} --at 3,4 --over microbatches --on 1 --scheduler 1f1b", "--on"),
    (f"pipeline sweep {STAGES} --at 0ms,9ms --queue 3 --scheduler 1f1b", "--queue"),
    (f"pipeline sweep {STAGES} --at 0ms,9ms --time-limit 3 --scheduler 1f1b", "--time-limit"),
    (f"pipeline sweep {STAGES} --at 0ms,9ms --latency 3ms --scheduler 1f1b", "--latency"),
    ("pipeline partition --times 1,2,3 --stages 2 --embedding 1", "--embedding"),
    ("pipeline partition --layers 4 --stages 2 --stage-memory 1GiB", "stage_memory"),
    ("pipeline partition --layers 4 --stages 2 --layer-memory 1GiB", "layer_memory"),
    ("detect times.csv --pattern x --column seconds", "--column"),
    ("detect train.log --pattern 'took ([0-9.]+)' --timestamps --rate", "--rate"),
    ("info --archs sm_80", "--archs"),
    ("info --jobs 2", "--jobs"),
]
OUTSIDE = """
from lanterne.collectives.algorithms.catalogue import make_schedule

def unnamed(world_size, late_rank=None):
    return make_schedule("all_reduce", "ring", world_size)

def uneven(world_size, late_rank=None):
    return make_schedule("all_reduce", "late_chain", world_size, late_rank=late_rank)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with the files that the calls name."""
    path = tmp_path_factory.mktemp("options")
    for name in ("times.csv", "trace.csv"):
        shutil.copy(EXAMPLES / name, path)
    (path / "outside.py").write_text(OUTSIDE)
    (path / "meta.yaml").write_text("dp_size: 9\npp_size: 4\n")
    shutil.copy(Path(calibrate.__file__).with_name("h800.json"), path)
    seconds = [1.0 + 0.001 * (i % 5) + (0.5 if i >= 40 else 0.0) for i in range(80)]
    rows = [f"{i},{one},{one if i < 60 else 9.0}\n" for i, one in enumerate(seconds)]
    (path / "slow.csv").write_text("step,seconds,other\n" + "".join(rows))
    (path / "ended.csv").write_text("ended\n" + "".join(f"{sum(seconds[: i + 1])}\n" for i in range(80)))
    (path / "train.log").write_text("".join(f"took {one} in {900 + i % 7}\n" for i, one in enumerate(seconds)))
    incident = {"what": "incident", "kind": "slow", "text": "slow", "gpus": [], "nics": [], "schema_version": 1}
    entries = [incident | {"host": host, "job": "j", "id": f"{host}1", "time_s": 1.0} for host in "ab"]
    (path / "hosts.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


@pytest.fixture
def call(folder, monkeypatch, capsys):
    """Return what runs a command line in `folder`: (exit code, standard output, standard error)."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.syspath_prepend(str(folder))

    def run(line):
        code = cli.main(shlex.split(line))
        return (code, *capsys.readouterr())

    for name, line in (
        ("plan.json", "schedule all_reduce --algorithm ring -n 4 --format json --output plan.json"),
        ("zb.json", f"pipeline plan {STAGES} --scheduler zb_h1 --json zb.json"),
        ("theirs.csv", f"pipeline plan {STAGES} --scheduler zb_h1 --csv theirs.csv --comms"),
    ):
        if not (folder / name).exists():
            assert run(line)[0] == 0, line
    return run


def answer(text):
    """Return what a command printed, without what only repeats its options, and without measured times."""
    echoed = (
        "argv",
        "environment",
        "planning_s",
        "solve_s",
        "problem",
        "in_order",
        "queue",
        "over",
        "values",
        "relative_to",
    )
    try:
        document = json.loads(text)
    except ValueError:
        return text
    return {key: value for key, value in document.items() if key not in echoed}


CASES = [
    (f"{command} {base}", option, words)
    for command, (base, options) in EFFECTS.items()
    for option, words in options.items()
]


@pytest.mark.parametrize("base, option, words", CASES)
def test_option_changes_the_answer(call, base, option, words):
    _, before, _ = call(base)
    code, after, error = call(f"{base} {option} {words}")
    assert code in (0, 1), error
    assert answer(after) != answer(before)


@pytest.mark.parametrize("line, named", REFUSED)
def test_option_without_effect_is_refused_before_any_output(call, line, named):
    code, out, error = call(line)
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert named in error


JUDGING = ("schedule", "cost", "study", "pipeline plan", "pipeline simulate", "pipeline check", "pipeline sweep",
           "pipeline partition", "detect", "locate", "rebalance", "history")  # fmt: skip
# What bounds a search, chooses a case of a file, scales the axis of a plot, or sets the exit code alone.
NOT_OF_THE_ANSWER = {"--time-limit", "--case", "--help", "--check", "--fail-on", "--unit"}


@pytest.mark.parametrize("command", JUDGING)
def test_every_option_of_a_judging_command_is_tried(command):
    calls = [f"{line} {' '.join(options)}" for line, (_, options) in EFFECTS.items()] + [line for line, _ in REFUSED]
    words = [line.split() for line in calls if cli.LANTERNE.find_command(line.split())[0] == command]
    tried = {word for line in words for word in line if word.startswith("--")}
    known = {
        max(action.option_strings, key=len)
        for action in cli.LANTERNE.build_parser(command)._actions
        if action.option_strings and action.dest not in (*OUTPUTS, "calibration")
    }
    assert known - NOT_OF_THE_ANSWER - tried == set()
