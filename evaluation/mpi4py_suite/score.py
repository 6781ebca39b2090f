"""Run mpi4py's own tests of buffers over threads of lanterne, through the shim, and count cells.

  ./run evaluate mpi4py_suite.score                    downloads the archive that locks/test.txt names
  ./run evaluate mpi4py_suite.score --archive mpi4py-4.1.2.tar.gz -n 4 --json cells.json

A cell is a test method of a class with one element type of one kind of array (array.array, NumPy): ok, fail, or "no
verb" where lanterne has not what it calls, by name. Exit code 1 below the bar.
"""

import argparse
import hashlib
import importlib
import inspect
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import unittest
import venv
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

import lanterne
from evaluation.mpi4py_suite.buffers import NoVerb
from evaluation.mpi4py_suite.shim import ShimMPI
from lanterne.collectives.communicator import Communicator

MODULES = ("test_cco_buf", "test_cco_nb_buf", "test_cco_vec", "test_p2p_buf")
LOCK = Path(__file__).resolve().parents[2] / "locks" / "test.txt"
# Of the others arrays are wrapped otherwise, or pretend to be on a device.
BACKENDS = ("ArrayArray", "ArrayNumPy")
# What calls MPI and nothing of the communicator's.
LEFT_OUT = ("TestReduceLocal",)
# Of the cells whose verb exists.
BAR = 0.98
TIMEOUT_S = 5.0


class SuiteCell(NamedTuple):
    """A test method of a class of a module, with one element type of one kind of array."""

    module: str
    case: str
    method: str
    backend: str
    typecode: str


class SuiteVerdict(NamedTuple):
    """What came of a cell: "ok", "fail", "no verb" or "skipped", and why."""

    state: str
    why: str = ""


def locked() -> tuple[str, set[str]]:
    """mpi4py's version in the lock, and the hashes of its archives."""
    found = re.search(r"^mpi4py==(\S+)((?: \\\n +--hash=sha256:\w+)+)", LOCK.read_text(), re.MULTILINE)
    assert found is not None, f"{LOCK} names mpi4py"
    return found[1], set(re.findall(r"sha256:(\w+)", found[2]))


def tests_of(archive: Path | None, folder: Path) -> Path:
    """The folder of the tests, unpacked below `folder`.

    Raises:
        SystemExit: the archive is not the locked one, or there is none.
    """
    version, hashes = locked()
    if archive is None:
        python = sys.executable
        if find_spec("pip") is None:  # as in the environment that ./run makes
            venv.create(folder / "pip", with_pip=True)
            python = str(folder / "pip" / "bin" / "python")
        command = [python, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "mpi4py"]
        subprocess.run([*command, "--dest", str(folder), f"mpi4py=={version}"], check=True)
        archive = next(folder.glob("mpi4py-*.tar.gz"))
    if hashlib.sha256(archive.read_bytes()).hexdigest() not in hashes:
        raise SystemExit(f"{archive}: expected mpi4py {version} as {LOCK.name} has it")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / f"mpi4py-{version}" / "test"


class _Loop:
    """What the tests loop over, and ask for the current of: the cell's array and type, which all ranks set alike."""

    array: Any = None
    typecode = ""

    def __call__(self) -> Iterator[tuple[Any, str]]:
        yield self.array, self.typecode


loop: _Loop = _Loop()


class Suite:
    """The test modules in `folder`, with the shim's names in place of mpi4py's."""

    def __init__(self, folder: Path) -> None:
        sys.path.insert(0, str(folder))
        self.mpi: ShimMPI = ShimMPI()
        self.arrays: ModuleType = importlib.import_module("arrayimpl")
        self.modules: dict[str, ModuleType] = {name: importlib.import_module(name) for name in MODULES}
        vars(self.arrays)["loop"] = loop
        for module in self.modules.values():
            vars(module)["MPI"] = self.mpi

    def cells(self) -> list[SuiteCell]:
        """All of them."""
        cells = []
        for name, module in self.modules.items():
            for case, kind in inspect.getmembers(module, inspect.isclass):
                if kind.__module__ != name or not issubclass(kind, unittest.TestCase) or case in LEFT_OUT:
                    continue
                for method in unittest.TestLoader().getTestCaseNames(kind):
                    loops = "arrayimpl.loop" in inspect.getsource(inspect.unwrap(getattr(kind, method)))
                    types = [
                        SuiteCell(name, case, method, backend, typecode)
                        for backend in BACKENDS
                        for typecode in getattr(self.arrays, backend).TypeMap
                    ]
                    cells += types if loops or "super()" in inspect.getsource(getattr(kind, method)) else types[:1]
        return cells

    def run(self, cells: list[SuiteCell], n: int) -> list[SuiteVerdict]:
        """The verdicts of `cells` on `n` threads."""
        return _joined(lanterne.spawn(n, self._rank, cells, timeout_s=60.0))

    def _rank(self, comm: Communicator, cells: list[SuiteCell]) -> list[SuiteVerdict]:
        verdicts: list[SuiteVerdict] = []
        used: tuple[Communicator, ...] = ()
        for cell in cells:
            if not used:
                used = comm.split(0), comm.split(comm.rank)
                for each in used:
                    each.timeout_s = TIMEOUT_S
                self.mpi.enter(*used)
            loop.array, loop.typecode = getattr(self.arrays, cell.backend), cell.typecode
            comm.barrier()
            kind = getattr(self.modules[cell.module], cell.case)
            test = kind(cell.method)
            test.COMM = self.mpi.COMM_SELF if "Self" in cell.case else self.mpi.COMM_WORLD
            verdicts.append(_verdict(test, cell.method))
            # What failed on one rank has left the others' communicators wherever they were.
            failed = np.array([verdicts[-1].state != "ok"])
            comm.all_reduce(failed, failed, "lor")
            if failed[0]:
                for each in used:
                    each.close()
                used = ()
        return verdicts


def _verdict(test: unittest.TestCase, method: str) -> SuiteVerdict:
    try:
        test.setUp()
        getattr(test, method)()
        test.tearDown()
    except NoVerb as error:
        return SuiteVerdict("no verb", str(error))
    except unittest.SkipTest as error:
        return SuiteVerdict("skipped", str(error))
    except Exception as error:
        return SuiteVerdict("fail", f"{type(error).__name__}: {error}".splitlines()[0])
    return SuiteVerdict("ok")


def _joined(by_rank: list[list[SuiteVerdict]]) -> list[SuiteVerdict]:
    """The worst verdict of the ranks; where one has no verb, the others only waited for it."""
    order = ("no verb", "fail", "skipped", "ok")
    return [min(verdicts, key=lambda verdict: order.index(verdict.state)) for verdicts in zip(*by_rank, strict=True)]


def table(cells: list[SuiteCell], verdicts: list[SuiteVerdict]) -> str:
    """Per module: cells by state; then what is missing, and what failed."""
    lines = [f"{'module':<18}{'cells':>7}{'ok':>7}{'fail':>7}{'no verb':>9}{'skipped':>9}"]
    for module in (*MODULES, "all"):
        mine = [verdict for cell, verdict in zip(cells, verdicts, strict=True) if module in (cell.module, "all")]
        count = Counter(verdict.state for verdict in mine)
        shown = f"{len(mine):>7}{count['ok']:>7}{count['fail']:>7}{count['no verb']:>9}{count['skipped']:>9}"
        lines.append(f"{module:<18}{shown}")
    pairs = list(zip(cells, verdicts, strict=True))
    for why, times in Counter(v.why for _, v in pairs if v.state == "no verb").most_common():
        lines.append(f"no verb: {why} ({times})")
    failed = Counter((c.module, c.method, v.why) for c, v in pairs if v.state == "fail")
    lines += [f"fail: {module}.{method}: {why} ({times})" for (module, method, why), times in failed.most_common(20)]
    return "\n".join(lines)


def main() -> int:
    """Run, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=3, metavar="N", help="ranks (default 3)")
    parser.add_argument("--archive", type=Path, metavar="FILE", help="mpi4py's source archive; default: downloaded")
    parser.add_argument("--only", default="", metavar="TEXT", help="cells whose module.class.method has this in it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every cell")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        suite = Suite(tests_of(args.archive, Path(folder)))
        cells = [cell for cell in suite.cells() if args.only in ".".join(cell[:3])]
        verdicts = suite.run(cells, args.n)
    print(table(cells, verdicts))
    count = Counter(verdict.state for verdict in verdicts)
    known = count["ok"] + count["fail"]
    share = count["ok"] / known if known else 0.0
    print(f"{share:.1%} of the {known} cells whose verb exists are ok, expected {BAR:.0%}")
    if args.json is not None:
        rows = [cell._asdict() | verdict._asdict() for cell, verdict in zip(cells, verdicts, strict=True)]
        args.json.write_text(json.dumps({"schema_version": 1, "argv": sys.argv, "ranks": args.n, "cells": rows}))
    return int(share < BAR)


if __name__ == "__main__":
    sys.exit(main())
