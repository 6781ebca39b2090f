"""Every registered algorithm: it passes the checker, and costs what its docstring says."""

import inspect
import re
from math import ceil, floor, log2

import pytest

from lanterne.collectives.check import check
from lanterne.collectives.contracts import CONTRACTS
from lanterne.collectives.cost import CostModel, price
from lanterne.collectives.registry import ALGORITHMS, algorithms_for, find_algorithm, make_schedule
from lanterne.errors import InputError

SIZES = [*range(1, 18), 32]


def cases():
    """(collective, name, world_size) of all that can be made."""
    for line in ALGORITHMS.values():
        for world_size in SIZES:
            if not line.refuses(world_size):
                yield pytest.param(
                    line.collective, line.name, world_size, id=f"{line.collective}-{line.name}-p{world_size}"
                )


def every_rank(line, world_size):
    """Option dicts with every root or late rank."""
    if CONTRACTS[line.collective].rooted:
        return [{"root": rank} for rank in range(world_size)]
    return [{"late_rank": rank} for rank in range(world_size)] if line.late else [{}]


def formula(line, what):
    """(comparison, expression, names) of `what` in the Cost line of the generator's docstring."""
    text = inspect.getdoc(line.generator)
    match = re.search(r"^Cost \((?P<names>.*?)\): (?P<terms>.*)$", text, re.M)
    terms = dict(re.findall(r"(rounds|load) ((?:<=|=) [^;]+)", match["terms"]))
    comparison, expression = terms[what].split(" ", 1)
    return comparison, expression, match["names"]


@pytest.mark.parametrize(("collective", "name", "world_size"), list(cases()))
def test_every_rank_passes_and_costs_what_the_docstring_says(collective, name, world_size):
    line = find_algorithm(collective, name)
    for options in every_rank(line, world_size):
        schedule = check(make_schedule(collective, name, world_size, **options)).schedule
        cost = price(schedule, 2**20, CostModel(1.0, 1.0))
        assert (schedule.collective, schedule.algorithm, schedule.world_size) == (collective, name, world_size)
        names = {"p": world_size, "m": schedule.num_chunks, "f": 2 ** floor(log2(world_size))}
        names |= {"ceil": ceil, "floor": floor, "log2": log2, "bin": bin, "sum": sum, "range": range, "min": min}
        for what in ("rounds", "load"):
            comparison, expression, _ = formula(line, what)
            names[what] = value = eval(expression, {"__builtins__": {}, **names}, {})  # noqa: S307: our own docstrings
            if comparison == "=":
                assert getattr(cost, what) == pytest.approx(value, rel=1e-12), what
            else:
                assert getattr(cost, what) <= value * (1 + 1e-12), what
