"""CuPy's own tests of cupyx.distributed, of its source, over lanterne.cupyx on two devices of the stand-ins.

  HOST_CUDA_DEVICES=2 tests/host_cuda/run tests/host_cuda/cupy_comm.py --runner FOLDER/comm_runner.py

FOLDER is tests/cupyx_tests/distributed_tests of a clone of CuPy. Each function of comm_runner.py runs with every
dtype that its test_comm.py has for it, two processes each; sparse arrays are left out. Exit code 1 if one fails.
"""

import argparse
import importlib.util
import subprocess
import sys

DTYPES = "bhilqBHILQefdFD"
WITHOUT = ("barrier", "init")
NAMES = (
    *("broadcast", "reduce", "all_reduce", "reduce_scatter", "all_gather", "send_and_recv", "send_recv"),
    *("scatter", "gather", "all_to_all", *WITHOUT),
)


def be_one(runner, name, dtypes):
    """Run test `name` with each of `dtypes`, in this process and those that it forks."""
    import cupyx.distributed
    import cupyx.distributed._nccl_comm

    from lanterne import cupyx as ours

    cupyx.distributed.init_process_group = ours.init_process_group
    cupyx.distributed._nccl_comm.NCCLBackend = ours.NCCLBackend
    spec = importlib.util.spec_from_file_location("comm_runner", runner)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    test = getattr(module, name)
    for dtype in dtypes:
        test(dtype)
    if not dtypes:
        test()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runner", required=True, metavar="FILE", help="CuPy's comm_runner.py")
    parser.add_argument("--only", default="", help="tests whose names contain this")
    parser.add_argument("--dtypes", default=DTYPES, help="characters (default: %(default)s)")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        be_one(args.runner, args.one, args.dtypes)
        return 0
    failed = 0
    for name in NAMES:
        for dtype in [""] if name in WITHOUT else args.dtypes:
            if args.only not in name:
                continue
            command = [sys.executable, __file__, "--runner", args.runner, "--one", name, "--dtypes", dtype]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            # As test_comm.py has it: nothing may be said on stderr.
            bad = done.returncode or done.stderr
            failed += bool(bad)
            told = f": {done.stderr.strip().splitlines()[-1:] or done.returncode}" if bad else ""
            print(f"{name} {dtype} {'FAILED' if bad else 'ok'}{told}", flush=True)
    print(f"{failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
