"""The project's figures beside their bars: what of the house, of each topic, is reached today. `./run figures [TOPIC]`

  ./run figures                 every row; what takes longer than some seconds is measured with --long only
  ./run figures house --long    the rows of the house, type checkers included (3 minutes)
  ./run figures gpu --long      spills, bits and the suite over stand-ins: what needs no GPU (half an hour)
  ./run figures --json -        the same as JSON

A row is a figure that somebody asked for, the bar that it has to reach, and how it is measured. A row that cannot be
measured by a function here names the command that measures it; one that nothing measures yet says so.
"""

import argparse
import ast
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from lanterne.bench.output import report
from lanterne.bench.scores.checkout import ROOT, said_by
from lanterne.bench.scores.gpu import without_device

TOPS = ("lanterne", "kernels", "transport", "collectives", "pipeline", "failslow", "bench")
YARDSTICKS = ("bench/papers", "bench/scores")
# The bars that tests/test_imports.py holds: of numeric constants, and of classes over so many lines.
LINES_PER_CONSTANT = 250
CLASS_LINES = 200
LARGE_CLASSES = 5
FIRST_SCREEN = "python -m lanterne.bench.scores.first_screen"
OPERATORS = "python -m lanterne.bench.scores.operators"
EXPERIMENT = "./run experiment"
PLANNER = "./run bench planner --kind shared,wave,loop,bidirectional --problems 8 --solver 60"
READY_FIRST = "./run pipeline simulate plan.json --jitter 0.02=10"
ARRIVALS = "./run bench lab-arrivals"
LAB_PEERS = "./run bench lab-peers --contenders lanterne,gloo --algorithm auto,ring --json FILE --cases"
LAB = "./run lab --rate 200mbit --hosts"
STARTING = "python -m lanterne.bench.scores.speed.starting --only"
CALLS_8 = f"{LAB} 8 -- lanterne bench calls --only"
SLOW_NIC = "./run lab --hosts 8 --rate 200mbit --rate 5=50mbit -- lanterne bench all_reduce --bytes 4M --delay 0,185ms"
LAB_2 = "LANTERNE_TRUSTED_NETWORK=0 ./run lab --hosts 2"
P2P = "lanterne bench p2p --transport tcp,tcp-unsealed,ucx --no-peer --bytes 8,64M"
DDP = "./run bench ddp --caps 1,2,25"
TRAIN = "./run pipeline train -n 4 --data README.md --transport tcp"
# Long enough for a rank to come back twice.
SMALL_TRAIN = f"{TRAIN} --stages 2 --blocks 4 --width 16 --length 16 --rows 2 --microbatches 8 --iterations 400"
WORLD_JOBS = "python -m lanterne.bench.scores.detector.score --world --jobs 5000 --oracle --detector tracker"


class Module(NamedTuple):
    """A file of the package: its path from the root, its text, its syntax tree."""

    path: Path
    text: str
    tree: ast.Module


class Row(NamedTuple):
    """A row: `measure` gives (value, whether the bar is reached or None), or is the command that does."""

    topic: str
    name: str
    bar: str
    measure: Callable[[], tuple[str, bool | None]] | str
    long: bool = False


@cache
def modules() -> tuple[Module, ...]:
    """Every file of the package, once: lanterne/'s links are left out."""
    paths = (path for top in TOPS for path in sorted((ROOT / top).rglob("*.py")))
    own = (path.relative_to(ROOT) for path in paths if not any(folder.is_symlink() for folder in path.parents))
    texts = ((path, (ROOT / path).read_text()) for path in own)
    return tuple(Module(path, text, ast.parse(text)) for path, text in texts)


def product() -> list[Module]:
    """The modules that are no yardsticks of our own."""
    return [module for module in modules() if not str(module.path).startswith(YARDSTICKS)]


def is_public(name: str) -> bool:
    """Whether a name is meant for others."""
    return not name.startswith("_")


def functions() -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every public function and method of the package."""
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_public(node.name):
                yield node


def is_annotated(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether all parameters but self and what it returns have annotations."""
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
    return function.returns is not None and all(
        argument.annotation is not None for argument in named if argument.arg not in ("self", "cls")
    )


def annotated() -> tuple[str, bool]:
    """Share of public functions that are annotated."""
    found = [is_annotated(function) for function in functions()]
    return f"{100 * sum(found) / len(found):.1f} % of {len(found):,}", all(found)


def largest_folder() -> tuple[str, bool]:
    """Files of the fullest folder."""
    files = Counter(module.path.parent for module in modules() if module.path.name != "__init__.py")
    folder, count = files.most_common(1)[0]
    return f"{count} ({folder})", count <= 17


def shared_class_names() -> tuple[str, bool]:
    """Public class names that several classes bear."""
    names = Counter(
        node.name
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef) and is_public(node.name)
    )
    several = sorted(name for name, count in names.items() if count > 1)
    return f"{len(several)} {' '.join(several)}".strip(), not several


def shared_module_names() -> tuple[str, bool]:
    """Module names that several files of the product bear; not bench's, which bear their commands' names."""
    names = Counter(module.path.stem for module in product() if module.path.parts[0] != "bench")
    several = sorted(name for name, count in names.items() if count > 1 and name != "__init__")
    return f"{len(several)} {' '.join(several)}".strip(), not several


def tuples_of_attributes() -> tuple[str, bool]:
    """Assignments in which three attributes or more are born at once."""
    found = [
        node
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and sum(isinstance(target, ast.Attribute) for target in node.targets[0].elts) > 2
    ]
    return str(len(found)), not found


def product_lines() -> tuple[str, bool]:
    """Lines of the product: without papers, scores and tests."""
    lines = sum(len(module.text.splitlines()) for module in product())
    return f"{lines:,}", lines <= 48_000


def ignored() -> tuple[str, bool]:
    """Comments that silence a type checker, each with its rule."""
    found = [
        line
        for module in modules()
        for line in module.text.splitlines()
        if re.search(r"#\s*(type|pyright):\s*ignore", line) and module.path != Path(__file__).relative_to(ROOT)
    ]
    bare = [line for line in found if not re.search(r"ignore\[[\w-]+", line)]
    return f"{len(found)}, {len(bare)} without a rule", len(found) <= 40 and not bare


def large_classes(tree: ast.Module) -> list[str]:
    """The names of a module's classes of more than CLASS_LINES lines, their docstrings included."""
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and (node.end_lineno or 0) - node.lineno + 1 > CLASS_LINES
    ]


def walls() -> tuple[str, bool]:
    """Classes of more than CLASS_LINES lines."""
    found = sorted(name for module in modules() for name in large_classes(module.tree))
    return f"{len(found)} {' '.join(found)}", len(found) <= LARGE_CLASSES


def numeric_constants(tree: ast.Module) -> list[str]:
    """The numeric constants of a module: names that are given a number, or a sum of numbers and names."""
    found = []
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(
            node.value, ast.Constant | ast.BinOp | ast.UnaryOp
        ):
            numbers = (leaf.value for leaf in ast.walk(node.value) if isinstance(leaf, ast.Constant))
            if any(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers):
                found.append(ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target))
    return found


def constants() -> tuple[str, bool]:
    """Lines of product for one numeric constant of a module."""
    found = sum(len(numeric_constants(module.tree)) for module in product())
    lines = sum(len(module.text.splitlines()) for module in product())
    return f"1 in {lines // max(1, found)} lines", lines >= LINES_PER_CONSTANT * found


def _names_the_case(node: ast.AST) -> bool | None:
    """Whether the message of an assert, or of one of NumPy's, holds a value, not only words; None: it is no assert."""
    if isinstance(node, ast.Assert):
        message = node.msg
    elif isinstance(node, ast.Call) and ast.unparse(node.func).startswith("np.testing.assert_"):
        message = next((keyword.value for keyword in node.keywords if keyword.arg == "err_msg"), None)
    else:
        return None
    return message is not None and not isinstance(message, ast.Constant)


def asserting_loops(tree: ast.Module) -> list[tuple[int, bool]]:
    """The loops of a test file that have asserts: the line of each, and whether all their messages name the case."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.For):
            named = [its for its in map(_names_the_case, ast.walk(node)) if its is not None]
            found += [(node.lineno, all(named))] if named else []
    return found


def hiding_loops() -> tuple[str, bool]:
    """Loops of tests that hide which case failed: those with an assert whose message does not name the case."""
    named = [
        names for path in (ROOT / "tests").rglob("*.py") for _, names in asserting_loops(ast.parse(path.read_text()))
    ]
    return f"{named.count(False)} (and {named.count(True)} whose messages name the case)", all(named)


def waiting_loops() -> tuple[str, bool]:
    """Loops that wait for one thing: all but `wait` itself and those that tests/transport/test_machine.py names."""
    test = "tests/transport/test_machine.py::test_one_function_waits"
    _, said = said_by(sys.executable, "-P", "-m", "pytest", test)
    return f"wait, and the loops named there: {said}", "failed" not in said and "passed" in said


def method_names() -> set[str]:
    """The names of the methods of all classes."""
    return {
        method.name
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, ast.FunctionDef) and not method.decorator_list
    }


def _own_functions(tree: ast.Module) -> set[str]:
    """The names of all functions of a file, methods and inner ones included."""
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def _is_patch(node: ast.AST, own: set[str], methods: set[str]) -> TypeGuard[ast.Assign]:
    """Whether an assignment puts a function, of those of its file, in the place of a method of another's object."""
    if not isinstance(node, ast.Assign):
        return False
    value = node.value
    is_function = (
        isinstance(value, ast.Lambda)
        or (isinstance(value, ast.Name) and value.id in own)
        or (isinstance(value, ast.Attribute) and value.attr in own and ast.unparse(value.value) == "self")
    )
    return is_function and any(
        isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id not in ("self", "cls")
        and target.attr in methods
        for target in node.targets
    )


def patches() -> tuple[str, bool]:
    """Methods that are replaced from outside: `trainer.execute = mine`; not those that setattr wraps to record them."""
    methods = method_names()
    found = []
    for module in product():
        own = _own_functions(module.tree)
        found += [f"{module.path}:{node.lineno}" for node in ast.walk(module.tree) if _is_patch(node, own, methods)]
    return f"{len(found)} {' '.join(found)}".strip(), not found


def restatements() -> tuple[str, bool]:
    """What needs what among F, B and W is said in action.py; the fast tables made of it are tested exhaustively."""
    names = "only_action_py_knows or slots or dependencies"
    _, said = said_by(sys.executable, "-P", "-m", "pytest", "tests/pipeline/plan", "-k", names)
    return f"tables against the table of needs: {said}", "failed" not in said and "passed" in said


def circles() -> tuple[str, bool]:
    """Circles of imports, between folders and inside them: what tests/test_imports.py finds."""
    _, said = said_by(sys.executable, "-P", "-m", "pytest", "tests/test_imports.py")
    return said, "failed" not in said and "passed" in said


def mypy() -> tuple[str, bool]:
    """Errors of `mypy --strict` in package and examples."""
    said = [said_by(sys.executable, "-P", "-m", "mypy", *what)[1] for what in (("-p", "lanterne"), ("examples",))]
    return "; ".join(said), all(line.startswith("Success") for line in said)


def pyright() -> tuple[str, bool]:
    """Errors of pyright in package and examples."""
    _, said = said_by(sys.executable, "-P", "-m", "basedpyright")
    return said, said.startswith("0 errors")


def completeness() -> tuple[str, bool]:
    """Public symbols whose type is known."""
    command = (sys.executable, "-P", "-m", "basedpyright", "--verifytypes", "lanterne", "--ignoreexternal")
    # It asks the Python that it finds on the path, whatever --pythonpath says.
    found = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    environment = os.environ | {"PATH": found}
    said = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False).stdout
    score = re.search(r"completeness score: ([\d.]+)%", said)
    return f"{score[1]} %" if score else "no score", score is not None and score[1] == "100"


FIGURES: list[Row] = [
    Row("house", "public functions annotated", "100 %", annotated),
    Row("house", "largest flat folder", "17 files", largest_folder),
    Row("house", "public class names with several meanings", "0", shared_class_names),
    Row("house", "module names with several meanings", "0", shared_module_names),
    Row("house", "assignments that bear 3 attributes or more", "0", tuples_of_attributes),
    Row("house", "checks of imports: back arrows, circles", "0 failed", circles),
    Row("house", "lines of the product", "48,000", product_lines),
    Row("house", "ignores of type checkers", "40, each with its rule", ignored),
    Row("house", "mypy --strict", "0 errors", mypy, long=True),
    Row("house", "pyright", "0 errors", pyright, long=True),
    Row("house", "pyright --verifytypes", "100 %", completeness, long=True),
    Row("house", "the suite on two quiet cores", "10 minutes", "./run test"),
    Row("house", "the quick part of the suite", "90 s", "./run test -m quick"),
    Row("first screen", "quiet runs of `./run bench` with a verdict", "19 of 20", FIRST_SCREEN),
    Row("first screen", "wrong verdicts in 20 beside 4 busy processes", "0", f"{FIRST_SCREEN} --busy 4"),
    Row("one way", f"classes over {CLASS_LINES} lines", str(LARGE_CLASSES), walls),
    Row("one way", "numeric module constants", f"1 in {LINES_PER_CONSTANT} lines", constants),
    Row("one way", "loops of tests with an assert whose message does not name the case", "0", hiding_loops),
    Row("one way", "loops that wait, besides the one function", "0", waiting_loops),
    Row("one way", "methods patched from outside", "0", patches),
    Row("one way", "restatements of what F, B and W need, untested", "0", restatements),
    Row("one way", "seeds of simulated ranks in 10 minutes", "10,000", "lanterne simulate --seeds 10000 --jobs 2"),
    Row("one way", "mutations found within 1,000 seeds", "90 %", "python tests/bench/mutants.py --seeds 1000 --jobs 2"),
    Row("operators", "detector on 5,000 fresh jobs, below the oracle", "2 points", WORLD_JOBS),
    Row("operators", "missing rank of a hang named in 50 programs", "50", f"{OPERATORS}.hang_score --jobs 10"),
    Row("operators", "incidents in an hour of healthy work at load 8", "0", f"{OPERATORS}.healthy_hour"),
    Row(
        "operators",
        "the right ranks in 200 live jobs, within 6 iterations",
        "95 %",
        f"{OPERATORS}.live_score --jobs 14",
    ),
    Row("operators", "traces kept back, in foreign formats, thinned by 10 %", "right", f"{OPERATORS}.foreign_score"),
    Row("operators", "watch, of the loop's time", "0.5 %", "./run bench failslow --check"),
    Row("operators", "a scrape of 1,024 ranks", "50 ms", f"{OPERATORS}.costs --only scrape"),
    Row("operators", "an update of the detector", "5 us", f"{OPERATORS}.costs --only update"),
    Row("operators", "locate on 1,000,000 records", "10 s, 1 GB", f"{OPERATORS}.costs --only locate"),
    Row("operators", "a published set of traces: right", "all", f"{OPERATORS}.trace_set --score FOLDER"),
    Row("reality", "H800 runs, each model left out, mean of all", "4.5 %", f"{EXPERIMENT} h800 --check"),
    Row("reality", "figures 15 to 18 of ADAPTRA, fitted on figure 14", "15 %", f"{EXPERIMENT} adaptra-setting --check"),
    Row("reality", "planner over the solver with 60 s, mean / worst", "0.5 % / 2 %", PLANNER),
    Row("reality", "the plan's order over ready-first, 2 % ten times as long", "at least 1.05 / 1.15", READY_FIRST),
    Row("reality", "modules of torch over torch's pipelining, 1F1B", "0.95", "./run bench torch-pipelining"),
    Row(
        "calls",
        "25 buckets at once, one rank late by 1.1 x total, over s/rate",
        "1.15",
        f"{LAB_PEERS} '8x25*4MiB@1.1'",
    ),
    Row("calls", "the same, late by 0.5 x total", "1.45", f"{LAB_PEERS} '8x25*4MiB@0.5'"),
    Row("calls", "left after the last start of a slow backward, in buckets", "1.3", f"{CALLS_8} backward"),
    Row(
        "calls",
        "start, compute, wait: total over the longer, asleep / matmul / Python",
        "1.05 / 1.15 / 1.15",
        f"{LAB} 2 -- lanterne bench calls --only overlap",
    ),
    Row(
        "calls",
        "fresh job, late by 1.1: second call / third on",
        "1.25 / 1.10",
        f"{ARRIVALS} --patterns steady --warmups 0 --algorithm auto --calls 8",
    ),
    Row(
        "calls",
        "another late rank in each call, late by 1.1, median of 20",
        "1.12",
        f"{ARRIVALS} --patterns moving --calls 20",
    ),
    Row("calls", "40 patterns of arrivals over ring: median / 90th percentile / worst", "1.03 / 1.08 / 1.10", ARRIVALS),
    Row("calls", "nobody late, 16 MiB, 8 busy processes beside it", "1.90", f"{CALLS_8} crowded"),
    Row("calls", "8 B, 2 ranks of a host: bound over native / plain", "1.5 / 50 us", "./run bench calls --only small"),
    Row(
        "calls",
        "8 B, 4 ranks on 2 cores: bound in memory, else / plain",
        "15, 60 us / 150 us",
        "./run bench calls -n 4 --only small",
    ),
    Row("calls", "broadcast 1 MiB and 16 MiB over native", "1.3", "./run bench calls --only large"),
    Row("calls", "other collectives over native, 2 ranks, 1 KiB / 1 MiB", "3 / 1.3", "./run bench calls --only large"),
    Row("calls", "two late together by 1.1; three by 0.5, 1 and 1.5", "1.20; 1.35", f"{ARRIVALS} --patterns two,three"),
    Row(
        "calls",
        "in virtual time: two late by 1.1; three by 0.5, 1, 1.5; a slow backward",
        "1.20; 1.35; 1.3",
        "./run test -m slow tests/collectives/late/test_late_times.py",
    ),
    Row("calls", "CPU seconds for a GB that a rank sends", "3.0", f"{CALLS_8} cpu"),
    Row("calls", "n = 4,096: a rank's own part made, checked, compiled", "1 s, 100 MiB", f"{STARTING} own"),
    Row("calls", "first init on a host, 4 ranks", "1 s", f"{STARTING} init"),
    Row("clusters", "ways of launching that give the right world, or one line", "9 of 9", "./run test -m cluster"),
    Row("clusters", "wrong elements and crashes by 1,000 forged connections", "0", "./run bench strangers --check"),
    Row("clusters", "the same by 1,000 messages of UCX clients", "0", "./run bench strangers --transport ucx --check"),
    Row("clusters", "tcp over ucx between hosts, 64 MiB, 10 Gbit/s", "0.8", f"{LAB_2} --rate 10gbit -- {P2P}"),
    Row("clusters", "the same, veth without a limit", "0.8", f"{LAB_2} --rate 400gbit -- {P2P}"),
    Row("clusters", "tcp's half trip over ucx's, 8 B", "10 us", f"{LAB_2} --rate 10gbit -- {P2P}"),
    Row("clusters", "seals of tcp at 10 Gbit/s, 64 MiB / 8 B", "5 % / 3 us", f"{LAB_2} --rate 10gbit -- {P2P}"),
    Row("clusters", "memory after 100,000 splits and closes", "within 5 MB", "./run bench splits --splits 100000"),
    Row(
        "torch",
        "torch's own distributed tests that gloo passes and we do not",
        "5",
        "python tests/torch/torch_suite.py --ranks 4",
    ),
    Row("torch", "late rank, DDP, from its backward to its end, over s/rate", "1.20", f"{DDP} --hosts 4 --late 0,2"),
    Row("torch", "one host, 4 ranks, over gloo", "1.02", f"{DDP} --ranks 4"),
    Row("torch", "memory of a job on one host, 4 ranks, over gloo's", "1.1", "./run bench ddp --caps 25 --memory"),
    Row("torch", "init_process_group without a cache", "1 s", "./run bench ddp --init 5"),
    Row(
        "torch",
        "killed in 50 runs: named on all survivors",
        "2 s",
        "python -m lanterne.bench.scores.peers.ddp_deaths --runs 50",
    ),
    Row(
        "topology",
        "2 hosts x 4 ranks, nobody late / one late by 1.1, over s/rate",
        "1.12 / 1.12",
        f"{LAB_PEERS} '2*4x8MiB@0,2*4x8MiB@1.1'",
    ),
    Row("topology", "4 hosts x 2 ranks, nobody / one late", "1.60 / 1.12", f"{LAB_PEERS} '4*2x8MiB@0,4*2x8MiB@1.1'"),
    Row("topology", "8 hosts, one NIC at a quarter: another late / its own / nobody", "4.5 / 4.5 / 5.0", SLOW_NIC),
    Row("topology", "auto over the best by name on 200 random topologies", "1.05", "./run study --random 200 --seed 1"),
    Row("going on", "killed in 200 jobs: next call right / rejoined", "1 s / 5 s", "./run bench rejoins --seeds 200"),
    Row("going on", "the same in 20 jobs on 8 hosts", "3 s / 5 s", "./run bench rejoins --seeds 20 --hosts 8"),
    Row(
        "going on",
        "next step of DDP after a kill, beside torchft's",
        "-",
        "python -m lanterne.bench.scores.peers.going_on",
    ),
    Row("going on", "partitions in the lab", "5 s", "./run test -m slow tests/bench/lab/test_partitions.py"),
    Row("going on", "300 seeds that lose a minority of hosts", "0 violations", "lanterne simulate --part --jobs 2"),
    Row(
        "going on",
        "300 seeds with paths cut in one direction",
        "0 violations",
        "lanterne simulate --part --one-way --jobs 2",
    ),
    Row(
        "going on",
        "10,000 seeds with kills, cuts, joins",
        "0 violations",
        "lanterne simulate --grow --seeds 10000 --jobs 2",
    ),
    Row(
        "going on",
        "time lost by a death in training, killed twice",
        "3 iterations and 2 s",
        f"{SMALL_TRAIN} --endure --copies 1 --restarts 1 --kill 3@10 --kill 0@200 --check",
    ),
    Row("going on", "cost while all is well, 8 B / 64 MiB", "3 us / 1 %", "./run bench enduring --only calls --check"),
    Row(
        "going on",
        "the same, an iteration of training / shares of state that copies take",
        "3 % / 1",
        "./run bench enduring --only training --check",
    ),
    Row(
        "gpu",
        "kernels that spill: all dtypes, 1 to 32 inputs, 3 architectures",
        "0",
        without_device.spills,
        long=True,
    ),
    Row("gpu", "those whose bits, run on the host, are not the CPU's", "0", without_device.wrong_bits, long=True),
    Row("gpu", "the stand-ins' suite", "2 minutes", without_device.stand_ins_suite, long=True),
]


def measured(figure: Row, *, long: bool) -> dict[str, Any]:
    """The record of a row: its value as text, and whether the bar is reached (None: nobody can say)."""
    record: dict[str, Any] = {"topic": figure.topic, "figure": figure.name, "bar": figure.bar, "reached": None}
    if isinstance(figure.measure, str):
        return record | {"value": figure.measure}
    if figure.long and not long:
        return record | {"value": "with --long"}
    value, reached = figure.measure()
    return record | {"value": value, "reached": reached}


def main(argv: list[str] | None = None) -> int:
    """Measure the rows of the command line and print them; the exit code."""
    topics = list(dict.fromkeys(figure.topic for figure in FIGURES))
    parser = argparse.ArgumentParser(
        prog="./run figures", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help=f"some of {', '.join(topics)} (default: all)")
    parser.add_argument("--long", action="store_true", help="measure what takes minutes too")
    parser.add_argument("--json", metavar="FILE", help="write the rows as JSON ('-' for standard output)")
    args = parser.parse_args(argv)
    if unknown := set(args.topics) - set(topics):
        parser.error(f"TOPIC: got {min(unknown)!r}, expected some of {', '.join(topics)}")
    chosen = [figure for figure in FIGURES if not args.topics or figure.topic in args.topics]
    records = [measured(figure, long=args.long) for figure in chosen]
    if args.json:
        report.write_json(args.json, report.envelope(results=records))
    if args.json != "-":
        words: dict[object, str] = {True: "reached", False: "missed", None: ""}
        columns = [(name, "") for name in ("topic", "figure", "bar", "today", "")]
        rows = [
            [*(record[key] for key in ("topic", "figure", "bar", "value")), words[record["reached"]]]
            for record in records
        ]
        report.print_table(columns, rows, left=range(5))
    return 0


if __name__ == "__main__":
    sys.exit(main())
