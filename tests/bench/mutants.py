"""Code with one condition turned around, or with a fault that it once had: what the simulation has to find.

  python tests/bench/mutants.py --seeds 1000 [--like NAME] [--reverted] [--jobs 2]

tries each in a process of its own, and prints after how many seeds it was found; "slow" if so many seeds take too long,
of which nothing is known then: give those fewer seeds (--like, --seeds).
"""

import argparse
import ast
import importlib
import inspect
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lanterne.bench.scores.simulation import growing, parting
from lanterne.bench.scores.simulation.baton import Escaped
from lanterne.bench.scores.simulation.scenario import draw
from lanterne.bench.scores.simulation.world import run

# Whose conditions are turned around, one by one.
MODULES = (
    *(f"lanterne.transport.store.{name}" for name in ("board_handler", "client", "connection", "server", "values")),
    *(f"lanterne.transport.store.membership.{name}" for name in ("admissions", "census", "epoch")),
    *(f"lanterne.transport.store.membership.{name}" for name in ("guards", "meetings", "members")),
    *(f"lanterne.transport.store.membership.{name}" for name in ("returns", "together")),
    *(f"lanterne.transport.board.{name}" for name in ("seat", "sequencer")),
    "lanterne.transport.rank_group",
)
# Faults that were there, and were mended: each as a patch that brings it back, and a seed that finds it.
REVERTED = Path(__file__).parent / "reverted"
ROOT = Path(__file__).parents[2]
# One seed in so many also stands for a job that grows, and for one that loses hosts.
GROWING, PARTING = 5, 10
# How long a mutant may take. One that is at the same seed for so long runs without end, and so is found, too.
LIMIT_S, STUCK_S = 240, 60
NOT, SLOW = "not", "slow"


def functions_of(module):
    """{name, dotted in a class: function} of a module's own; of one with two names, the first."""
    found = {}
    for owner in [module, *(each for _, each in inspect.getmembers(module, inspect.isclass))]:
        if owner is not module and owner.__module__ != module.__name__:
            continue
        for name, function in vars(owner).items():
            function = getattr(function, "fget", None) or function
            is_own = inspect.isfunction(function) and function.__code__.co_filename == module.__file__
            if is_own and function not in found.values():
                found[name if owner is module else f"{owner.__name__}.{name}"] = function
    return found


def put(module, name, tree):
    """Have `module` use the function that `tree` defines in place of its own `name`."""
    scope = {}
    function = tree.body[0]
    is_property = any(ast.unparse(each) == "property" for each in function.decorator_list)
    function.decorator_list = []
    exec(compile(ast.fix_missing_locations(tree), module.__file__, "exec"), vars(module), scope)
    owner, _, last = name.rpartition(".")
    made = scope[function.name]
    if owner:
        users = vars(module)[owner]
        before = vars(users)[last]
        for name in [name for name, each in vars(users).items() if each is before]:
            setattr(users, name, property(made) if is_property else made)
        return
    before = vars(module)[last]
    for user in [each for each in sys.modules.values() if getattr(each, last, None) is before]:
        setattr(user, last, made)


def source_of(function):
    return ast.parse(textwrap.dedent(inspect.getsource(function)))


def conditions_of(tree):
    """The nodes of `tree` that decide something."""
    deciding = [node for node in ast.walk(tree) if isinstance(node, ast.If | ast.While | ast.IfExp)]
    return [node for node in deciding if not isinstance(node.test, ast.Constant)]


def all_mutants():
    """Names of the mutants: module, function, number of the condition and its text."""
    for module_name in MODULES:
        for name, function in functions_of(importlib.import_module(module_name)).items():
            if name in ("main",) or "__class__" in function.__code__.co_freevars:
                continue
            for number, node in enumerate(conditions_of(source_of(function))):
                yield f"{module_name} {name} {number}: {ast.unparse(node.test)}"


def apply(mutant):
    """Change the code of this process as `mutant` says, a name of all_mutants."""
    module_name, name, number = mutant.partition(":")[0].split()
    module = importlib.import_module(module_name)
    tree = source_of(functions_of(module)[name])
    node = conditions_of(tree)[int(number)]
    node.test = ast.UnaryOp(ast.Not(), node.test)
    put(module, name, tree)


def patched(patch, folder):
    """A copy of the package in `folder`, as `patch`, a file, makes it: what PYTHONPATH has to be."""
    changed = set(re.findall(r"^--- a/(\w+)/", patch.read_text(), re.MULTILINE))
    for name in [link.name for link in (ROOT / "lanterne").iterdir() if link.is_symlink()]:
        if name in changed:
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (folder / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "lanterne", folder / "lanterne", symlinks=True)
    (folder / "src").mkdir()
    (folder / "src" / "lanterne").symlink_to("../lanterne")
    subprocess.run(["git", "apply", str(patch.resolve())], cwd=folder, check=True)
    return folder / "src"


def seeds_until_found(mutant, seeds):
    """After how many of `seeds` the simulation finds `mutant` (None: the code as it is), and how; None: it does not."""
    logging.disable(logging.CRITICAL)
    if mutant is not None:
        apply(mutant)
    began_s = time.monotonic()
    for count, seed in enumerate(seeds, 1):
        print(count, f"{time.monotonic() - began_s:.1f}", file=sys.stderr, flush=True)  # For `outcome_of_slow`.
        try:
            problems = run(draw(seed)).problems
            if not problems and seed % GROWING == 0:
                problems = growing.run(seed).problems
            if not problems and seed % PARTING == 0:
                problems = parting.run(seed).problems
        except Escaped as error:
            problems = [f"escaped: {error}"]
        if problems:
            return count, problems[0]
    return None


def outcome_of_slow(progress, limit_s=LIMIT_S):
    """As of `hunt`, of a process that was ended after `limit_s`: by lines of which each says when it came to a seed."""
    count, at_s = (progress.strip().rpartition("\n")[2].split() or ("0", "0"))[:2]
    if limit_s - float(at_s) > STUCK_S:
        return int(count), "runs without end"
    return SLOW, f"{count} seeds in {limit_s} s"


def hunt(mutant, seeds, path=None):
    """As `seeds_until_found`, in a process of its own, of the package at `path`.

    Returns: (the number of seeds, NOT or SLOW; what was found).
    """
    command = [sys.executable, "-P", str(Path(__file__)), "--first", str(seeds[0]), "--seeds", str(len(seeds))]
    command += ["--only", mutant] if mutant else ["--as-it-is"]
    environment = os.environ | ({"PYTHONPATH": str(path)} if path else {})
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment)
    except subprocess.TimeoutExpired as ended:
        return outcome_of_slow((ended.stderr or b"").decode())
    if done.returncode not in (0, 1):
        return 1, done.stderr.strip().rpartition("\n")[2]
    count, _, what = done.stdout.strip().partition(" ")
    return (int(count), what) if done.returncode == 1 else (NOT, "")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--seeds", type=int, default=1000, help="of each mutant, at most (default 1000)")
    parser.add_argument("--like", default="", help="only those with this in their name")
    parser.add_argument("--reverted", action="store_true", help="the faults of before, not turned conditions")
    parser.add_argument("--jobs", type=int, default=1, help="as many at once, one a core (default 1)")
    parser.add_argument("--only", help="this one, in this process")
    parser.add_argument("--as-it-is", action="store_true", help="nothing turned, in this process")
    args = parser.parse_args()
    seeds = range(args.first, args.first + args.seeds)
    if args.only or args.as_it_is:
        found = seeds_until_found(args.only, seeds)
        print(*(found or ("none",)), flush=True)
        # Threads of a world that broke may run on.
        os._exit(1 if found else 0)
    if args.reverted:
        names = [patch.stem for patch in sorted(REVERTED.glob("*.patch")) if args.like in patch.stem]
    else:
        names = [name for name in all_mutants() if args.like in name]

    def outcome(name):
        with tempfile.TemporaryDirectory() as folder:
            path = patched(REVERTED / f"{name}.patch", Path(folder)) if args.reverted else None
            return hunt(None if args.reverted else name, seeds, path)

    counts = []
    with ThreadPoolExecutor(args.jobs) as pool:
        for name, (count, what) in zip(names, pool.map(outcome, names), strict=True):
            counts.append(count)
            print(f"{count:>5}  {name}  {what[:90]}", flush=True)
    slow, found = counts.count(SLOW), sum(count not in (NOT, SLOW) for count in counts)
    share = f"{100 * found / max(1, len(names)):.0f} %"
    print(f"{found} of {len(names)} found within {args.seeds} seeds, {share}; {slow} too slow to say")


if __name__ == "__main__":
    main()
