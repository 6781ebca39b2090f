"""Code with one condition turned around, or with a fault that it once had: what the simulation has to find.

  python tests/evaluation/mutants.py --seeds 1000 [--like NAME] [--reverted] [--jobs 2] [--log FILE]

tries each in a process of its own, all with a few seeds first, then those that are left with more, and prints after how
many each was found; "slow" if so many seeds take too long, of which nothing is known then. With --log it goes on where
it was ended.
"""

import argparse
import ast
import importlib
import inspect
import json
import logging
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from evaluation.simulation import baton, growing, parting
from evaluation.simulation.errands import stories
from evaluation.simulation.scenario import draw
from evaluation.simulation.world import run

# Whose conditions are turned around, one by one.
MODULES = (
    *(f"lanterne.transport.store.{name}" for name in ("board_handler", "client", "connection", "server", "values")),
    *(f"lanterne.transport.store.{name}" for name in ("fellows", "heirs", "succession", "terms")),
    *(f"lanterne.transport.store.membership.{name}" for name in ("admissions", "census", "epoch")),
    *(f"lanterne.transport.store.membership.{name}" for name in ("guards", "meetings", "members")),
    *(f"lanterne.transport.store.membership.{name}" for name in ("returns", "together")),
    *(f"lanterne.transport.board.{name}" for name in ("late_policy", "seat", "sequencer")),
    "lanterne.transport.rank_group",
)
# Faults that were there, and were mended: each as a patch that brings it back, and a seed that finds it.
REVERTED = Path(__file__).parent / "reverted"
# Turned conditions that are not found, by name: in how many seeds' jobs and errands they were sought, and why not.
LEFT = Path(__file__).parent / "mutants_left.json"
ROOT = Path(__file__).parents[2]
# Each seed also stands for an errand, one in so many for a job that grows, and for one that loses hosts; every other
# one of these, and of the seeds for conditions that no other job comes to, for one whose paths are cut one way.
GROWING, PARTING, ONE_WAY = 5, 10, 2
PARTED = tuple(f"lanterne.transport.store.{name}" for name in ("fellows", "heirs", "succession"))
# CPU seconds that a mutant may take, and one seed of it: what takes longer runs without end, and so is found, too.
LIMIT_S, STUCK_S = 400, 30
# And bytes: some fill a queue without end.
MEMORY_NBYTES = 4 << 30
# Seconds in which a rank that keeps the baton has escaped: whole sweeps need not wait as long as a user's seed may.
ESCAPED_S = 5.0
NOT, SLOW = "not", "slow"
# Seeds for all mutants, then for those that are left: most are found by the first few.
STAGES = 10, 100


def functions_of(module):
    """{name, dotted in a class: function} of a module's own; of one with two names, the first."""
    found = {}
    for owner in [module, *(each for _, each in inspect.getmembers(module, inspect.isclass))]:
        if owner is not module and owner.__module__ != module.__name__:
            continue
        for name, member in vars(owner).items():
            function = getattr(member, "fget", None) or member
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
        for alias in [alias for alias, each in vars(users).items() if each is before]:
            setattr(users, alias, property(made) if is_property else made)
        return
    before = vars(module)[last]
    # What judges goes by the functions as they are.
    users = [each for name, each in sys.modules.items() if not name.startswith("lanterne.bench")]
    for user in [each for each in users if getattr(each, last, None) is before]:
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
    """After how many of `seeds` the simulation finds `mutant` (None: the code as it is), and how; None: it does not.

    The number is SLOW where they take LIMIT_S of CPU. A seed that takes STUCK_S ends this process by SIGXCPU.
    """
    logging.disable(logging.CRITICAL)
    baton.ESCAPED_S = ESCAPED_S
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_NBYTES, MEMORY_NBYTES))
    if mutant is not None:
        apply(mutant)
    for count, seed in enumerate(seeds, 1):
        print(count, file=sys.stderr, flush=True)  # For `hunt`, of one that does not end.
        took_s = time.process_time()
        if took_s > LIMIT_S:
            return SLOW, f"{count - 1} seeds in {took_s:.0f} s"
        resource.setrlimit(resource.RLIMIT_CPU, (int(took_s) + STUCK_S, resource.RLIM_INFINITY))
        try:
            is_parted = mutant is not None and mutant.startswith(PARTED)
            problems = stories.run(seed).problems
            if not problems and not is_parted:
                problems = run(draw(seed)).problems
            if not problems and not is_parted and seed % GROWING == 0:
                problems = growing.run(seed).problems
            if not problems and (is_parted or seed % PARTING == 0):
                one_way = (seed if is_parted else seed // PARTING) % ONE_WAY == 1
                problems = parting.run(seed, one_way=one_way).problems
        except baton.Escaped as error:
            problems = [f"escaped: {error}"]
        if problems:
            return count, problems[0]
    return None


def hunt(mutant, seeds, path=None):
    """As `seeds_until_found`, in a process of its own, of the package at `path`.

    Returns: (the number of seeds, NOT or SLOW; what was found).
    """
    command = [sys.executable, "-P", str(Path(__file__)), "--first", str(seeds[0]), "--seeds", str(len(seeds))]
    command += ["--only", mutant] if mutant else ["--as-it-is"]
    environment = os.environ | ({"PYTHONPATH": str(path)} if path else {})
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    said = done.stderr.strip().split("\n")
    last = max([int(line) for line in said if line.isdigit()], default=1)
    if done.returncode == -signal.SIGXCPU:
        return last, f"runs without end: {STUCK_S} s in one seed"
    if done.returncode not in (0, 1):
        return last, said[-1]
    count, _, what = done.stdout.strip().partition(" ")
    return (SLOW if count == SLOW else int(count), what) if done.returncode == 1 else (NOT, "")


class Log:
    """Outcomes of mutants, in a file if there is one, from which another run goes on."""

    def __init__(self, path):
        self._path = path
        self._tried = {}  # By name: seeds up to here, outcome
        for line in path.read_text().splitlines() if path and path.exists() else ():
            name, *rest = json.loads(line)
            self._tried[name] = rest

    def note(self, name, until, count, what):
        """Within seeds up to `until`, `name` was found after `count` (or NOT, SLOW)."""
        self._tried[name] = [until, count, what]
        if self._path:
            with self._path.open("a") as file:
                print(json.dumps([name, until, count, what]), file=file)

    def tried(self, name):
        """(seeds up to here, outcome, what was found) of `name`."""
        return self._tried.get(name, [0, NOT, ""])

    def is_left(self, name, until):
        """Whether seeds up to `until` may still find it."""
        tried, count, _ = self.tried(name)
        return count == NOT and tried < until


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--seeds", type=int, default=1000, help="of each mutant, at most (default 1000)")
    parser.add_argument("--like", default="", help="only those with this in their name")
    parser.add_argument("--reverted", action="store_true", help="the faults of before, not turned conditions")
    parser.add_argument("--jobs", type=int, default=1, help="as many at once, one a core (default 1)")
    parser.add_argument("--log", type=Path, help="outcomes are kept in this file, and those in it are not sought again")
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

    log = Log(args.log)

    def outcome(name, until):
        with tempfile.TemporaryDirectory() as folder:
            path = patched(REVERTED / f"{name}.patch", Path(folder)) if args.reverted else None
            tried = log.tried(name)[0]
            count, what = hunt(None if args.reverted else name, seeds[tried:until], path)
        return name, until, tried + count if isinstance(count, int) else count, what

    for until in sorted({*(stage for stage in STAGES if stage < args.seeds), args.seeds}):
        left = [name for name in names if log.is_left(name, until)]
        with ThreadPoolExecutor(args.jobs) as pool:
            for each in pool.map(lambda name, until=until: outcome(name, until), left):
                log.note(*each)
                name, _, count, what = each
                if count != NOT or until == args.seeds:
                    print(f"{count:>5}  {name}  {what[:90]}", flush=True)
    counts = [log.tried(name)[1] for name in names]
    slow, found = counts.count(SLOW), sum(count not in (NOT, SLOW) for count in counts)
    share = f"{100 * found / max(1, len(names)):.0f} %"
    print(f"{found} of {len(names)} found within {args.seeds} seeds, {share}; {slow} too slow to say")


if __name__ == "__main__":
    main()
