"""Benchmark what it costs to be able to go on, while all is well: calls, iterations of training, memory.

A job of processes on this host, of which one is killed at first, shrinks and takes it back; its ranks then make a
second communicator, of a job that nothing ever befell. Blocks of the same work over both take turns, in changing order.

  ./run evaluate enduring
  ./run evaluate enduring --only calls --blocks 40
  ./run evaluate enduring -n 4 --check --json enduring.json

calls       an all_reduce of 8 B and of 64 MiB: over the communicator that has shrunk and grown, against the one that
            never did (bars: 3 us more, 1 %); and `grow` after each step, where nobody waits
training    an iteration of a small GPT, a pipeline of two stages: by a Trainer over the second, against Enduring over
            the first, without copies and with them (bar 3 %); what ranks keep of the state besides, on average, in
            shares of what one has (bar: one more with copies than without), and how much more while ranks step, when
            they hold no activations; of stages that are not alike the neighbour's may be larger than a rank's own

Exit code 1 if an element is wrong or a loss differs, and with --check if a bar is missed. A rank needs a core of its
own.
"""

import argparse
import io
import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from lanterne.bench.output import report
from lanterne.bench.output.units import chosen, format_time, whole
from lanterne.errors import InputError, LanterneError, TransportError
from lanterne.transport.own_python import own_python

if TYPE_CHECKING:
    from lanterne.collectives.communicator import Communicator
    from lanterne.pipeline.train.enduring import Enduring
    from lanterne.pipeline.train.trainer import Trainer

PARTS = {"calls": "", "training": ""}
SMALL_NBYTES, LARGE_NBYTES = 8, 64 << 20
# In a block.
SMALL_CALLS, LARGE_CALLS = 200, 1
# One share, and what says of which parameters it is.
SMALL_BAR_S, LARGE_BAR, TRAINING_BAR, SHARES_BAR = 3e-6, 0.01, 0.03, 1.001
# What losses may differ by.
TOLERANCE = 1e-5
# Of waits, and of the job.
TIMEOUT_S, JOB_S = 60.0, 1800.0
RESULT = "result.json"
STAGES = 2
MODEL = ["--microbatches", "8", "--stages", str(STAGES)]
MODES = "plain", "enduring", "copies"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--ranks", type=whole(2), default=2, metavar="N", help="an even number (default 2)")
    parser.add_argument("--transport", choices=("tcp", "ucx"), default="tcp", help="(default tcp)")
    parser.add_argument("--only", default=",".join(PARTS), metavar="A,B", help="calls, training or both (default both)")
    parser.add_argument("--blocks", type=whole(1), default=30, metavar="K", help="pairs of blocks (default 30)")
    parser.add_argument("--iterations", type=whole(1), default=30, metavar="K", help="of each training (default 30)")
    parser.add_argument("--check", action="store_true", help="print the bars; exit code 1 if one is missed")
    parser.add_argument("--json", metavar="FILE", help="write everything, raw samples too ('-' for standard output)")


def run(args: argparse.Namespace) -> int:
    """Measure and print; the exit code."""
    if args.ranks % STAGES:
        raise InputError(f"-n: got {args.ranks}, expected a multiple of {STAGES}, the stages of the pipeline")
    parts = chosen(args.only, "--only", PARTS)
    found = run_job(args.ranks, args.transport, parts, args.blocks, args.iterations)
    records = [*call_records(found["calls"]), *training_records(found["training"])]
    document = report.envelope(ranks=args.ranks, results=records, wrong=found["wrong"])
    report.tell(args.json, document, partial(print_results, with_bars=args.check))
    return int(found["wrong"] > 0 or (args.check and not all(each["met"] for each in records)))


def run_job(ranks: int, transport: str, parts: Sequence[str], blocks: int, iterations: int) -> dict[str, Any]:
    """What rank 0 of a job has measured."""
    from lanterne.transport.job.launch import launch

    with tempfile.TemporaryDirectory() as folder:
        words = [folder, ",".join(parts), str(blocks), str(iterations)]
        code = f"import sys; from {__name__} import rank_main; rank_main(*sys.argv[1:])"
        # The launcher reports the death and the return: no news here.
        with redirect_stderr(io.StringIO()) as said:
            command = [*own_python(), "-c", code, *words]
            variables = {"LANTERNE_TRANSPORT": transport}
            exit_code = launch(command, ranks, "direct", JOB_S, variables, restarts=1)
        if exit_code:
            raise LanterneError(f"enduring: the job ended with code {exit_code}, expected 0: {said.getvalue()[-500:]}")
        result: dict[str, Any] = json.loads(Path(folder, RESULT).read_text())
        return result


# -- what the ranks do


def rank_main(folder: str, parts: str, blocks: str, iterations: str) -> None:
    """One rank: it outlives a death, or comes back, and measures; rank 0 writes what it found."""
    import lanterne
    from lanterne.collectives.jobs import join

    before = outlived(lanterne.init(timeout_s=TIMEOUT_S))
    rank, size = before.rank, before.world_size
    never = join(FolderStore(folder), rank, size, os.environ["LANTERNE_TRANSPORT"], timeout_s=TIMEOUT_S)
    found: dict[str, Any] = {"calls": {}, "training": {}, "wrong": 0}
    if "calls" in parts:
        found["calls"], found["wrong"] = measure_calls(before, never, int(blocks))
    if "training" in parts:
        found["training"], differ = measure_training(before, never, int(iterations))
        found["wrong"] += differ
    if rank == 0:
        Path(folder, RESULT).write_text(json.dumps(found))
    never.close()
    before.close()


def outlived(comm: "Communicator") -> "Communicator":
    """The communicator of as many ranks, once the last of them was killed, started again and taken in."""
    ranks = comm.world_size
    if comm.epoch == 0 and comm.rank == ranks - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    while comm.epoch == 0 or comm.world_size < ranks:
        try:
            comm.barrier()
            comm = comm.grow()
        except TransportError:
            comm = comm.shrink()
        time.sleep(0.01)
    return comm


class FolderStore:
    """Where ranks meet before they have a store: a folder that all of them see."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder, "meeting")
        self._folder.mkdir(exist_ok=True)

    def set(self, key: str, value: str) -> None:
        """See MeetingPlace."""
        report.write_atomically(self._path(key), value.encode())

    def get(self, key: str) -> bytes:
        """See MeetingPlace."""
        until_s, path = time.monotonic() + TIMEOUT_S, self._path(key)
        while not path.exists():
            if time.monotonic() > until_s:
                raise TransportError(f"enduring: got no {key} after {TIMEOUT_S:g} s, expected it from another rank")
            time.sleep(1e-3)
        return path.read_bytes()

    def _path(self, key: str) -> Path:
        return self._folder / key.replace("/", "-")


def in_turn(number: int, names: Sequence[str]) -> list[str]:
    """`names` in another order each time, so that each is as often first as last."""
    first = number % len(names)
    turned = [*names[first:], *names[:first]]
    return turned if number // len(names) % 2 else turned[::-1]


def measure_calls(
    before: "Communicator", never: "Communicator", blocks: int
) -> tuple[dict[str, dict[str, list[float]]], int]:
    """({what: {"before", "never": seconds of a call, by block}}, wrong elements). All ranks call it."""
    import numpy as np

    comms, wrong = {"before": before, "never": never}, 0
    found: dict[str, dict[str, list[float]]] = {}
    for name, nbytes, calls in (("small", SMALL_NBYTES, SMALL_CALLS), ("large", LARGE_NBYTES, LARGE_CALLS)):
        x, out = np.full(nbytes // 4, never.rank + 1.0, np.float32), np.empty(nbytes // 4, np.float32)
        found[name] = {each: [] for each in comms}
        # The first of each is not counted: it makes what the others use.
        for number in range(-1, blocks):
            for each in in_turn(number, [*comms]):
                out[:] = 0
                taken_s = timed_s(comms[each], calls, methodcaller("all_reduce", x, out))
                wrong += int((out != never.world_size * (never.world_size + 1) / 2).sum())
                if number >= 0:
                    found[name][each].append(taken_s)
    found["grow"] = {"before": [timed_s(before, SMALL_CALLS, lambda comm: comm.grow()) for _ in range(blocks)]}
    return found, wrong


def timed_s(comm: "Communicator", calls: int, call: Callable[["Communicator"], object]) -> float:
    """Seconds of one of so many calls one after the other, on this rank."""
    comm.barrier()
    start_s = time.perf_counter()
    for _ in range(calls):
        call(comm)
    return (time.perf_counter() - start_s) / calls


def measure_training(
    before: "Communicator", never: "Communicator", iterations: int
) -> tuple[dict[str, dict[str, Any]], int]:
    """({mode: {"seconds" of iterations, "shares" kept by each rank, "passing" ones}}, losses that differ).

    All ranks call it.
    """
    import numpy as np

    from lanterne.bench.train.job import add_model_arguments, make_setup, planned
    from lanterne.pipeline.model.text import Text
    from lanterne.pipeline.train.enduring import Enduring

    parser = argparse.ArgumentParser()
    add_model_arguments(parser, "8")
    settings = parser.parse_args(MODEL, argparse.Namespace(seed=0))
    text = Text(np.random.default_rng(0).integers(0, 256, 1 << 18).astype(np.uint8), 256)
    setup = make_setup(settings, never.world_size, text)
    plans, starts = planned(never, setup, settings)

    def make(comm: "Communicator") -> "Trainer":
        return setup.trainer(comm, plans, layout=setup.layout, starts=starts)

    trainings: dict[str, Trainer | Enduring] = {
        "plain": make(never),
        "enduring": Enduring(before, make),
        "copies": Enduring(before, make, copies=1),
    }
    found: dict[str, dict[str, Any]] = {mode: {"seconds": [], "shares": []} for mode in MODES}
    differ = 0
    for number in range(-1, iterations):
        losses = {}
        for mode in in_turn(number, MODES):
            never.barrier()
            start_s = time.perf_counter()
            done = trainings[mode].iteration()
            if number >= 0:
                found[mode]["seconds"].append(time.perf_counter() - start_s)
            assert done is not None, "nobody has died"
            losses[mode] = done.losses
        differ += sum(not np.allclose(each, losses["plain"], rtol=TOLERANCE) for each in losses.values())
    for mode, training in trainings.items():
        nbytes = np.empty((never.world_size, 3))
        never.all_gather(np.array(nbytes_of(training), float), nbytes)
        kept, passing = (nbytes[:, :2] / nbytes[:, 2].mean()).T.tolist()
        found[mode] |= {"shares": kept, "passing": passing}
        if isinstance(training, Enduring):
            training.finish(lambda comm: None)
        else:
            training.close()
    return found, differ


def nbytes_of(training: "Trainer | Enduring") -> tuple[int, int, int]:
    """What this rank keeps in memory beside its state; what is more while ranks step; its state."""
    from lanterne.pipeline.train.enduring import Enduring
    from lanterne.pipeline.train.state import seat_state

    trainer = training.trainer if isinstance(training, Enduring) else training
    assert trainer is not None, "nobody is out"
    own = training.kept if isinstance(training, Enduring) else None
    kept, passing = (0, 0) if own is None else (own.nbytes, own.passing_nbytes)
    return kept, passing, seat_state(trainer.copies, 0).values.nbytes


# -- what is made of it


def call_records(calls: Mapping[str, Mapping[str, Sequence[float]]]) -> list[dict[str, Any]]:
    """Of each kind of call what more it takes, seconds or a part, by pairs of blocks."""
    if not calls:
        return []
    pairs = {name: list(zip(own["before"], own["never"], strict=True)) for name, own in calls.items() if "never" in own}
    small, large = calls["small"], calls["large"]
    return [
        _record("all_reduce of 8 B", small, "never", "before", [b - n for b, n in pairs["small"]], SMALL_BAR_S, "s"),
        _record("all_reduce of 64 MiB", large, "never", "before", [b / n - 1 for b, n in pairs["large"]], LARGE_BAR),
        _record("grow, nobody waits", calls["grow"], None, "before", calls["grow"]["before"], None, "s"),
    ]


def training_records(training: Mapping[str, Mapping[str, Sequence[float]]]) -> list[dict[str, Any]]:
    """What more an iteration takes, and what is kept."""
    if not training:
        return []
    times = {mode: own["seconds"] for mode, own in training.items()}
    found = []
    for mode, what in (("enduring", "iteration, --endure"), ("copies", "iteration, --endure --copies 1")):
        more = [with_s / without_s - 1 for with_s, without_s in zip(times[mode], times["plain"], strict=True)]
        found.append(_record(what, times, "plain", mode, more, TRAINING_BAR))
    shares = {mode: own["shares"] for mode, own in training.items()}
    more = [statistics.mean(shares["copies"]) - statistics.mean(shares["enduring"])]
    kept = _record("shares kept, --copies 1", shares, "enduring", "copies", more, SHARES_BAR, "shares")
    passing = {mode: own["passing"] for mode, own in training.items()}
    more = [statistics.mean(passing["copies"]) - statistics.mean(passing["enduring"])]
    return [*found, kept, _record("and while ranks step", passing, "enduring", "copies", more, None, "shares")]


def _record(
    what: str,
    samples: Mapping[str, Sequence[float]],
    without: str | None,
    with_it: str,
    more: Sequence[float],
    bar: float | None,
    unit: str = "part",
) -> dict[str, Any]:
    middle = statistics.median(more)
    return {
        "what": what,
        "unit": unit,
        "without": None if without is None else statistics.median(samples[without]),
        "with": statistics.median(samples[with_it]),
        "more": middle,
        "bar": bar,
        "met": bar is None or middle <= bar,
        "samples": {name: list(own) for name, own in samples.items()},
    }


def _percent(part: float) -> str:
    return f"{100 * part:.1f} %"


def print_results(document: Mapping[str, Any], file: TextIO, *, with_bars: bool = False) -> None:
    """A table, `with_bars` beside what has to be reached; and a line if something was wrong."""
    columns = [("measured", ""), ("without", "median"), ("with", "median"), ("more", "of pairs")]
    rows = []
    for each in document["results"]:
        shown: Callable[[float], str] = "{:.2f}".format if each["unit"] == "shares" else format_time
        more = _percent if each["unit"] == "part" else shown
        cells = ["-"] * 2 if each["without"] is None else [shown(each["without"]), more(each["more"])]
        rows.append([each["what"], cells[0], shown(each["with"]), cells[1]])
        if with_bars:
            rows[-1] += ["-" if each["bar"] is None else more(each["bar"]), "" if each["met"] else "missed"]
    report.print_table([*columns, *[("bar", ""), ("", "")] * with_bars], rows, file=file)
    if document["wrong"]:
        print(f"{document['wrong']} elements or losses are wrong", file=file)
