"""Code with one condition turned around, or with a fault that it once had: what the simulation has to find.

  python tests/bench/mutants.py --seeds 1000 [--like NAME] [--revert]

tries each in a process of its own, and prints after how many seeds it was found.
"""

import argparse
import ast
import importlib
import inspect
import logging
import os
import subprocess
import sys
import textwrap
from pathlib import Path

from lanterne.bench.scores.simulation.baton import Escaped
from lanterne.bench.scores.simulation.scenario import draw
from lanterne.bench.scores.simulation.world import run

# Whose conditions are turned around, one by one.
MODULES = (
    *(f"lanterne.transport.store.{name}" for name in ("board_handler", "client", "epoch", "members")),
    *(f"lanterne.transport.store.{name}" for name in ("server", "values")),
    *(f"lanterne.transport.board.{name}" for name in ("seat", "sequencer")),
    "lanterne.transport.rank_group",
)
# Faults that were there, and were mended: (module, function, as it is, as it was).
REVERTS = {
    "rails are made although a rank has died": (
        "lanterne.transport.rails.rail", "join", "if check_dead is not None:", "if False:",
    ),
    "who cannot make its rails keeps those it has": (
        "lanterne.transport.rails.rail", "join", "opened.enter_context(sock)", "sock",
    ),
    "the store ends with the first rank that dies": (
        "lanterne.transport.store.server", "Store._drop",
        "connection.rank is not None and self.members.epoch.all_came", "connection.rank is not None",
    ),
    "of several deaths any is named": (
        "lanterne.transport.rank_group", "Group.check_peers",
        "for rank, reason in self._failed.items():", "for rank, reason in reversed(self._failed.items()):",
    ),
    "who never joined is not told of": (
        "lanterne.transport.store.epoch", "Epoch.absent",
        "if rank not in self._members and rank not in self._left:", "if False:",
    ),
    "a death that a neighbour's death follows is not named": (
        "lanterne.collectives.execute.communicator_base", "_cause",
        "communicator.transport.first_death(communicator.ranks)", "None",
    ),
}  # fmt: skip
# A mutant that makes a process run without end is found, too.
LIMIT_S = 240


def functions_of(module):
    """{name, dotted in a class: function} of a module's own."""
    found = {}
    for owner in [module, *(each for _, each in inspect.getmembers(module, inspect.isclass))]:
        if owner is not module and owner.__module__ != module.__name__:
            continue
        for name, function in vars(owner).items():
            function = getattr(function, "fget", None) or function
            if inspect.isfunction(function) and function.__code__.co_filename == module.__file__:
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
        setattr(vars(module)[owner], last, property(made) if is_property else made)
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
    """Change the code of this process as `mutant` says, a name of all_mutants or of REVERTS."""
    if mutant in REVERTS:
        module_name, name, now, before = REVERTS[mutant]
        module = importlib.import_module(module_name)
        text = textwrap.dedent(inspect.getsource(functions_of(module)[name]))
        assert text.count(now) >= 1, f"{mutant}: {now!r} is no longer in {name}"
        put(module, name, ast.parse(text.replace(now, before)))
        return
    module_name, name, number = mutant.partition(":")[0].split()
    module = importlib.import_module(module_name)
    tree = source_of(functions_of(module)[name])
    node = conditions_of(tree)[int(number)]
    node.test = ast.UnaryOp(ast.Not(), node.test)
    put(module, name, tree)


def seeds_until_found(mutant, seeds):
    """After how many seeds the simulation finds `mutant`, and how; None: not within `seeds`."""
    logging.disable(logging.CRITICAL)
    apply(mutant)
    for seed in range(seeds):
        try:
            problems = run(draw(seed)).problems
        except Escaped as error:
            problems = [f"escaped: {error}"]
        if problems:
            return seed + 1, problems[0]
    return None


def hunt(mutant, seeds):
    """As `seeds_until_found`, in a process of its own: (seeds or None, what was found)."""
    command = [sys.executable, str(Path(__file__)), "--only", mutant, "--seeds", str(seeds)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return seeds, "runs without end"
    if done.returncode not in (0, 1):
        return 1, done.stderr.strip().rpartition("\n")[2]
    count, _, what = done.stdout.strip().partition(" ")
    return (int(count), what) if done.returncode == 1 else (None, "")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=1000, help="of each mutant, at most (default 1000)")
    parser.add_argument("--like", default="", help="only those with this in their name")
    parser.add_argument("--revert", action="store_true", help="the faults of before, not turned conditions")
    parser.add_argument("--only", help="this one, in this process")
    args = parser.parse_args()
    if args.only:
        found = seeds_until_found(args.only, args.seeds)
        print(*(found or ("none",)), flush=True)
        # Threads of a world that broke may run on.
        os._exit(1 if found else 0)
    names = [name for name in (REVERTS if args.revert else all_mutants()) if args.like in name]
    counts = []
    for name in names:
        count, what = hunt(name, args.seeds)
        counts.append(count)
        print(f"{count or 'not':>5}  {name}  {what[:90]}", flush=True)
    found = sum(count is not None for count in counts)
    print(f"{found} of {len(names)} found within {args.seeds} seeds, {100 * found / max(1, len(names)):.0f} %")


if __name__ == "__main__":
    main()
