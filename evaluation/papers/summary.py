"""Run every experiment of the papers, and write one table of what agrees with them, differs, or cannot be run here.

  ./run evaluate papers.summary FOLDER                   # runs those that FOLDER has no JSON of, in turn: hours
  ./run evaluate papers.summary FOLDER --only adaptra    # those whose names begin so
  ./run evaluate papers.summary FOLDER --table           # runs nothing

FOLDER/NAME.json is what `experiment NAME --json` writes. The table, for a page, goes to standard output.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from evaluation.papers.experiment import EXPERIMENTS, PaperValue, judge
from lanterne.bench.output import report
from lanterne.transport.own_python import own_python

PAPERS = {"stragglar": "StragglAR", "adaptra": "ADAPTRA", "crosspipe": "CrossPipe", "greyhound": "GREYHOUND"}
# Experiments that show more than their names say.
FIGURES = {"h800": "the authors' published runs", "adaptra-8": "figures 4, 5, 8"}
# What no experiment shows, and where it is shown, or why it cannot be.
ELSEWHERE: dict[str, dict[str, str]] = {
    "stragglar": {
        "figure 2a": "whole in figure 8",
        "figures 2b, 7": "`lanterne cost all_reduce --plot FILE`",
        "figure 9": "whole in figure 6",
        "figure 4": "`lanterne schedule all_reduce -n 4 --algorithm stragglar`",
        "figure 11": "cannot be run here: steps of NCCL between GPUs; `lanterne bench p2p --device cuda` there",
        "figure 12, appendix I": "cannot be run here: training on GPUs; `./run evaluate ddp` on CPUs",
    },
    "adaptra": {
        "figures 2, 6": "`lanterne pipeline simulate --in-order`",
        "figure 7, theorem 1, lemma 1": "properties in tests/pipeline/planners/test_adaptra.py",
        "figure 9": "cannot be run here: NCCL's kernels beside computing on one GPU",
        "figures 10 to 12": "designs: transport/rails, pipeline/device",
        "tables 1, 2": "models and clusters; their stages are in the setting of figure 14",
        "figure 13": "`lanterne pipeline train --mitigate --adapt --cap 4M`",
    },
    "crosspipe": {
        "figures 1 to 7, 13": "designs: pipeline/simulate, pipeline/schedules, pipeline/planners",
        "figure 10": "a design: pipeline/planes, pipeline/execute",
        "figure 16": "a design: transport/shaped.py, measured in figure 17",
        "table 2": "of its five models only Llama 3 405B: figure 9",
        "table 4": "its two models by their times, in tables 5 and 6: no GPU trains them",
    },
    "greyhound": {
        "table 1, figures 1 to 6": "a census of a cluster, whose trace is not public; of one's own cluster: "
        "`lanterne validate --every 10min --history FILE`, then `lanterne history FILE`",
        "figures 7 to 12, table 2": "designs: failslow/record, failslow/validate, failslow/mitigate",
    },
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for and print the table; the exit code: 1 if an experiment failed."""
    parser = argparse.ArgumentParser(
        prog="./run evaluate papers.summary", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="where the JSON files are")
    parser.add_argument("--only", default="", metavar="PREFIX", help="experiments whose names begin so")
    parser.add_argument("--quick", action="store_true", help="run them with --quick")
    parser.add_argument("--table", action="store_true", help="print the table of what is there")
    options = parser.parse_args(arguments)
    failed = [] if options.table else _run_all(options.folder, options.only, quick=options.quick)
    print("\n".join(table(options.folder)))
    for name in failed:
        print(f"failed: {name}", file=sys.stderr)
    return int(bool(failed))


def _run_all(folder: Path, only: str, *, quick: bool) -> list[str]:
    """Run the experiments of which there is no JSON; the names of those that failed."""
    folder.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in EXPERIMENTS:
        path = folder / f"{name}.json"
        if not name.startswith(only) or path.exists() or EXPERIMENTS[name] in _done(folder):
            continue
        report.progress(name)
        command = [*own_python(), "-m", "evaluation", "experiment", name, "--json", str(path)]
        if subprocess.run([*command, *(["--quick"] if quick else [])], stdout=sys.stderr, check=False).returncode:
            failed.append(name)
    return failed


def _done(folder: Path) -> set[str]:
    """Modules of the experiments that the folder has: two names may stand for one."""
    return {EXPERIMENTS[path.stem] for path in folder.glob("*.json") if path.stem in EXPERIMENTS}


def table(folder: Path) -> Iterator[str]:
    """The lines of the table, in Markdown."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    for paper, title in PAPERS.items():
        yield from (f"## {title}", "", "| figure | beside the paper | command |", "| --- | --- | --- |")
        for name in (name for name in EXPERIMENTS if EXPERIMENTS[name].partition(".")[0] == paper and name in found):
            document = found[name]
            rest = name.removeprefix(f"{paper}-").replace("-", " ")
            figure = FIGURES.get(name) or (f"figure {rest}" if rest[0].isdecimal() else rest)
            busy = (
                " (others kept the machine busy)" if any(each["agrees"] is None for each in _values(document)) else ""
            )
            command = f"`./run evaluate experiment {name}`" + (" (`--quick`)" if document["quick"] else "")
            yield f"| {figure} | {'; '.join(_verdict(document))}{busy} | {command} |"
        for figure, why in ELSEWHERE[paper].items():
            yield f"| {figure} | {why} | |"
        yield ""


def _values(document: dict[str, Any]) -> list[dict[str, Any]]:
    values: list[dict[str, Any]] = document["paper_values"]
    return values


def _verdict(document: dict[str, Any]) -> list[str]:
    """What an experiment's document says of the paper, and of bars that it misses."""
    values = [
        PaperValue(each["what"], float("nan") if each["ours"] is None else each["ours"], each["paper"], each["reason"])
        for each in _values(document)
    ]
    missed = [f"misses its bar: {bar['what']}" for bar in document["bars"] if bar["met"] is False]
    return [*(judge(values) or ["no value to compare"]), *missed]


if __name__ == "__main__":
    sys.exit(main())
