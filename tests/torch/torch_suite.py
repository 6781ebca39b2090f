"""PyTorch's own tests of torch.distributed, on the CPU: which does gloo pass and lanterne not, and why?

  .venv-torch/bin/python -P tests/torch/torch_suite.py [--ranks 3] [--only TEXT] [--json FILE] [--seconds 600]

It runs the tests of torch/testing/_internal/distributed/distributed_test.py, which is in the wheel, over gloo, and then
those that pass over lanterne, whose name stands where they say gloo; all in one job, started anew after each failure.
`./run test -m torch` makes the environment. Exit code: 1 if more than MOST_MISSED tests are missed.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import unittest
from datetime import timedelta
from pathlib import Path

MOST_MISSED = 2
# Of one test, those that wait for a timeout of theirs taking some seconds; and until the first begins.
TEST_S, START_S = 60.0, 240.0
# After one rank has failed, or ended, how long the others have.
GRACE_S = 8.0
OK, SKIPPED, FAILED = "ok", "skipped", "failed"


def set_up(folder, ranks):
    """What the module of the tests reads when it is imported."""
    os.environ |= {"BACKEND": "gloo", "WORLD_SIZE": str(ranks), "TEMP_DIR": str(folder), "INIT_METHOD": "env://"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1"}


def load():
    """(the class of the tests, their module)."""
    from torch.testing._internal.distributed import distributed_test

    class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        pass

    return Suite, distributed_test


def names_of(suite):
    # The others need a GPU.
    return [name for name in unittest.TestLoader().getTestCaseNames(suite) if "cuda" not in name.lower()]


def be_lanterne():
    """From now on "gloo" is lanterne, to whoever makes a group."""
    import torch.distributed as dist

    import lanterne.torch

    assert lanterne.torch.LanterneGroup
    for name in ("init_process_group", "new_group"):
        made = getattr(dist.distributed_c10d, name)

        def make(*args, made=made, **options):
            if options.get("backend") == "gloo":
                options["backend"] = "lanterne"
            return made(*("lanterne" if arg == "gloo" else arg for arg in args), **options)

        for place in (dist, dist.distributed_c10d):
            setattr(place, name, make)


def run_one(suite, module, name, rank, folder):
    """(verdict, why) of one test on this rank."""
    import torch.distributed as dist
    from torch.testing._internal import common_utils

    for part in ("barrier", "test_dir", "init_dir"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    os.environ["TEMP_DIR"] = str(folder)
    module.Barrier.barrier_id = 0
    test = suite(name)
    test.rank, test.file_name = rank, str(folder / "store")
    limit_s = module.CUSTOM_PG_TIMEOUT.get(name, module.default_pg_timeout)
    common_utils.set_rng_seed()
    try:
        dist.init_process_group(
            backend="gloo",
            init_method=f"file://{test.file_name}",
            world_size=test.world_size and int(test.world_size),
            rank=rank,
            timeout=timedelta(seconds=limit_s),
        )
        test._barrier()
        getattr(test, name)()
        test._barrier()
    except unittest.SkipTest as skip:
        verdict = SKIPPED, str(skip)
    except SystemExit as end:
        skips = {skip.exit_code: skip.message for skip in module.TEST_SKIPS.values()}
        verdict = (SKIPPED, skips[end.code]) if end.code in skips else (FAILED, f"exit code {end.code}")
    except BaseException as error:
        return FAILED, f"{type(error).__name__}: {error}\n{traceback.format_exc()[-1500:]}"
    else:
        verdict = OK, ""
    with contextlib.suppress(AssertionError, ValueError):  # the test may have done so
        dist.destroy_process_group()
    return verdict


def be_rank(backend, rank, folder, names):
    """Run tests until one fails, a line of JSON each."""
    suite, module = load()
    if backend == "lanterne":
        be_lanterne()
    for number, name in enumerate(names):
        verdict, why = run_one(suite, module, name, rank, Path(folder) / str(number))
        os.write(3, (json.dumps([name, verdict, why]) + "\n").encode())
        if verdict == FAILED:
            os._exit(1)
    os._exit(0)


def run_all(backend, names, ranks, until_s, found, save):
    """`found`, {name: (verdict, why)}, with those of `names` that it lacks, as far as time allows."""
    left = [name for name in names if name not in found]
    while left and time.monotonic() < until_s:
        with tempfile.TemporaryDirectory() as folder:
            lines = run_job(backend, left, ranks, Path(folder), until_s)
        # A job ends early in a test that fails, or that not all ranks end.
        ended = min(map(len, lines))
        is_told = ended == len(left) or any(line[ended - 1][1] == FAILED for line in lines if ended)
        count = ended if is_told or time.monotonic() >= until_s else ended + 1
        for index, name in enumerate(left[:count]):
            told = [line[index][1:] for line in lines if len(line) > index]
            failed = [why for verdict, why in told if verdict == FAILED]
            if failed or len(told) < ranks:
                found[name] = FAILED, (failed or ["a rank crashed, or did not end"])[0]
            else:
                found[name] = next(((SKIPPED, why) for verdict, why in told if verdict == SKIPPED), (OK, ""))
        left = left[count:]
        save()
        print(f"{backend}: {len(names) - len(left)} of {len(names)}", file=sys.stderr, flush=True)
    return {name: found[name] for name in names if name in found}


def run_job(backend, names, ranks, folder, until_s):
    """Of each rank, the lines that it wrote, until all have ended or one has failed and the others had time."""
    files, processes = [folder / f"rank{rank}" for rank in range(ranks)], []
    for rank, path in enumerate(files):
        words = [sys.executable, "-P", __file__, "--rank", str(rank), "--backend", backend, "--ranks", str(ranks)]
        with path.open("wb") as out:
            command = [*words, "--folder", str(folder), "--names", ",".join(names)]
            shell = ["sh", "-c", f'exec "$@" 3>>{path}', "sh", *command]
            quiet = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
            output = None if os.environ.get("SUITE_LOUD") else subprocess.DEVNULL
            processes.append(subprocess.Popen(shell, env=os.environ | quiet, stdout=output, stderr=output))
            out.flush()
    progress, moved_s = -1, time.monotonic()
    try:
        while any(process.poll() is None for process in processes) and time.monotonic() < until_s:
            time.sleep(0.1)
            size = sum(path.stat().st_size for path in files)
            if size != progress:
                progress, moved_s = size, time.monotonic()
            ended = any(process.poll() is not None for process in processes)
            if time.monotonic() > moved_s + (GRACE_S if ended else TEST_S if size else START_S):
                break
    finally:
        for process in processes:
            with contextlib.suppress(OSError):
                process.send_signal(signal.SIGKILL)
            process.wait()
    return [[json.loads(line) for line in path.read_text().splitlines()] for path in files]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--only", default="", help="tests whose names contain this")
    parser.add_argument("--seconds", type=float, default=3600.0, help="start no test after that")
    parser.add_argument("--json", help="write all verdicts; those that are there are not found out again")
    for hidden in ("--rank", "--backend", "--folder", "--names"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        set_up(folder, args.ranks)
        if args.rank is not None:
            random.seed(0)
            be_rank(args.backend, int(args.rank), args.folder, args.names.split(","))
        names = [name for name in names_of(load()[0]) if args.only in name]
    until_s = time.monotonic() + args.seconds
    kept = json.loads(Path(args.json).read_text()) if args.json and Path(args.json).exists() else {}

    def save():
        if args.json:
            Path(args.json).write_text(json.dumps(kept, indent=1))

    gloo = run_all("gloo", names, args.ranks, until_s, kept.setdefault("gloo", {}), save)
    passed = [name for name, (verdict, _) in gloo.items() if verdict == OK]
    ours = run_all("lanterne", passed, args.ranks, until_s, kept.setdefault("lanterne", {}), save)
    missed = {name: why for name, (verdict, why) in ours.items() if verdict != OK}
    for name, why in missed.items():
        print(f"missed {name}: {why.splitlines()[0] if why else 'skipped'}")
    print(
        f"{len(names)} tests, {len(gloo)} run over gloo: {len(passed)} pass; of these {len(ours)} run over lanterne: "
        f"{len(missed)} missed (at most {MOST_MISSED} are to be)"
    )
    return int(len(missed) > MOST_MISSED)


if __name__ == "__main__":
    sys.exit(main())
