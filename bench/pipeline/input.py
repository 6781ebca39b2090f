"""What the `lanterne pipeline` commands share: the problem, from a file, from options, or from both."""

import argparse
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from lanterne.bench.output import units
from lanterne.bench.output.report import read_json
from lanterne.errors import InputError
from lanterne.pipeline.plan.problem import Problem

TIMES = {
    "forward": "F",
    "backward_input": "B, the gradient of the input",
    "backward_weight": "W, the gradient of the weights",
}
# Options with units give problems in this unit.
UNIT, UNIT_S = "ms", 1e-3


def add_problem_arguments(parser: argparse.ArgumentParser) -> None:
    """The problem file and the options that replace or change it."""
    parser.add_argument(
        "problem",
        nargs="?",
        metavar="PROBLEM.json",
        help="problem file; with options instead, all of it comes from them",
    )
    group = parser.add_argument_group(
        "problem",
        "Times are all bare numbers, in the problem's own unit, or all with units such as 10ms; "
        "a list such as 10ms,10ms,15ms goes by stage.",
    )
    group.add_argument("--case", metavar="ID", help="the case of this id, of a file with a list of `cases`")
    group.add_argument("--stages", type=int, metavar="S", help="stages, one per rank")
    group.add_argument("--microbatches", type=int, metavar="M", help="microbatches of an iteration")
    for key, what in TIMES.items():
        group.add_argument(f"--{key.replace('_', '-')}", metavar="T[,T...]", help=f"duration of {what}")
    group.add_argument("--latency", metavar="T", help="latency of every link")
    group.add_argument(
        "--link",
        action="append",
        default=[],
        metavar="I=T",
        help="latency of the link between ranks I and I+1; repeatable",
    )
    group.add_argument(
        "--bandwidth",
        action="append",
        default=[],
        metavar="I=RATE",
        help="bandwidth of that link, such as 1=10gbit; repeatable",
    )
    group.add_argument("--message", metavar="SIZE", help="bytes of a message, such as 64MiB")
    group.add_argument(
        "--memory",
        metavar="N|SIZE",
        help="activations that a rank can hold; or bytes, such as 8MB, where the file says what F, B and W hold",
    )


def problem_from(args: argparse.Namespace, more: Iterable[str] = ()) -> tuple[Problem, str, float | None]:
    """(Problem, unit of its times as text, seconds in it or None where that is not known).

    Args:
        args: the command's options.
        more: texts of further times, which have to be in units if those of the options are.

    Raises:
        InputError: the file cannot be read or is no problem; an option cannot be.
    """
    document = _document(args)
    given = {key: getattr(args, key).split(",") for key in TIMES if getattr(args, key) is not None}
    links = dict(_assignment(text, "--link") for text in args.link)
    texts = [*chain.from_iterable(given.values()), *links.values(), *([args.latency] if args.latency else []), *more]
    unit, unit_s = _unit(args, document, texts)
    for key in ("stages", "microbatches"):
        if getattr(args, key) is not None:
            document[key] = getattr(args, key)
    for key, texts in given.items():
        times = [one_time(text, f"--{key.replace('_', '-')}", unit_s) for text in texts]
        document[key] = times[0] if len(times) == 1 else times
    if not args.problem:
        missing = [key for key in ("stages", "microbatches", "forward") if key not in document]
        if missing:
            raise InputError(
                f"problem: got no {missing[0]}, expected a problem file or --stages, --microbatches and --forward"
            )
        document = {"backward_input": document["forward"], "backward_weight": document["forward"]} | document
    if args.memory is not None:
        document |= _capacity(args.memory, document)
    if args.latency is not None:
        document["link_latency"] = one_time(args.latency, "--latency", unit_s)
    if args.message is not None:
        document["message_nbytes"] = units.parse_nbytes(args.message, "--message")
    with of_file(args.problem):
        problem = Problem.from_dict(document)
    given_rates = [_assignment(text, "--bandwidth") for text in args.bandwidth]
    rates = {link: units.parse_rate_bytes_per_s(text, "--bandwidth") * (unit_s or 1.0) for link, text in given_rates}
    latencies = {link: one_time(text, "--link", unit_s) for link, text in links.items()}
    changes: dict[str, Any] = {
        key: set_links(problem, key, values)
        for key, values in (("link_latency", latencies), ("link_bandwidth", rates))
        if values
    }
    return dataclasses.replace(problem, **changes), unit, unit_s


def _capacity(text: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a problem's memory under --memory: `text` is a count of activations, or bytes where it has a unit."""
    if units.is_number(text):
        return {"memory": None, "max_inflight_activations": float(text)}
    nbytes, memory = units.parse_nbytes(text, "--memory"), document.get("memory")
    if not isinstance(memory, dict):
        raise InputError(
            f"--memory: got {text} and a problem without memory, expected a number of activations, or a file that says "
            "what F, B and W hold, as `lanterne pipeline train --profile` writes it"
        )
    return {"memory": memory | {"capacity": nbytes}}


@contextmanager
def of_file(path: str | Path | None) -> Iterator[None]:
    """What is wrong with what file `path` holds names the file; None is no file."""
    try:
        yield
    except InputError as error:
        raise type(error)(f"{path}: {error}") if path else error from None


def _document(args: argparse.Namespace) -> dict[str, Any]:
    """The JSON object of the problem file, or of its case; empty without a file."""
    if not args.problem:
        return {}
    document = read_json(args.problem)
    if args.case is not None:
        document = _case(args.problem, document, args.case)
    if not isinstance(document, dict):
        raise InputError(f"{args.problem}: got {type(document).__name__}, expected an object")
    if isinstance(document.get("problem"), dict) and "stages" not in document:
        document = document["problem"]  # A plan file holds the problem that it was made for.
    if "cases" in document and "stages" not in document:
        raise InputError(
            f"{args.problem}: holds several cases, expected --case with one of {', '.join(_ids(document))}"
        )
    return dict(document)


def _unit(args: argparse.Namespace, document: Mapping[str, Any], texts: Sequence[str]) -> tuple[str, float | None]:
    """The unit of the problem's times and the seconds in it; options with units need a file that names its own."""
    unit = str(document.get("unit", ""))
    try:
        unit_s = units.parse_time_s(f"1{unit}") if unit else None
    except InputError:
        unit_s = None
    if units.are_bare(texts, "times") or unit_s is not None:
        return unit, unit_s
    if args.problem:
        raise InputError(
            f'times: got {", ".join(texts)}, expected bare numbers, {args.problem} having no "unit" such as "ms"'
        )
    return UNIT, UNIT_S


def _assignment(text: str, option: str) -> tuple[str, str]:
    link, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"{option}: got {text!r}, expected LINK=VALUE such as 3=20ms")
    return link, value


def set_links(problem: Problem, key: str, values: Mapping[str, float | None]) -> tuple[Any, ...]:
    """The problem's `key` (link_latency or link_bandwidth) with `values` (text of link i -> value) put in, both ways.

    Raises:
        InputError: no such link.
    """
    given: tuple[Any, ...] = getattr(problem, key) or (None,) * (problem.stages - 1)
    by_pair = bool(given) and isinstance(given[0], tuple)
    table: list[Any] = [list(row) for row in given] if by_pair else list(given)
    for text, value in values.items():
        if not (text.isdecimal() and int(text) < problem.stages - 1):
            raise InputError(
                f"link: got {text!r}, expected 0 to {problem.stages - 2}, link I being between ranks I and I+1"
            )
        i = int(text)
        if by_pair:
            table[i][i + 1] = table[i + 1][i] = value
        else:
            table[i] = value
    return tuple(map(tuple, table)) if by_pair else tuple(table)


def _case(path: str, document: Any, wanted: str) -> Any:
    if not isinstance(document, dict) or not isinstance(document.get("cases"), list):
        raise InputError(f"{path}: has no list of `cases`, expected one beside --case")
    for case in document["cases"]:
        if isinstance(case, dict) and case.get("id") == wanted:
            return case
    raise InputError(f"--case: got {wanted!r}, expected one of {', '.join(_ids(document))}")


def _ids(document: Mapping[str, Any]) -> list[str]:
    return [str(case.get("id")) for case in document["cases"] if isinstance(case, dict)]


def one_time(text: str, what: str, unit_s: float | None) -> float:
    """`text` in the problem's unit, of `unit_s` seconds: a bare number, or one with a unit where that is known.

    Raises:
        InputError: neither.
    """
    if units.is_number(text):
        return float(text)
    if unit_s is None:
        raise InputError(f"{what}: got {text!r}, expected a bare number")
    return round(units.parse_time_s(text, what) / unit_s, 9)
