"""CuPy's own tests of its distributed backend, through lanterne.cupyx on two devices that are stand-ins.

  HOST_CUDA_DEVICES=2 tests/host_cuda/run tests/host_cuda/cupy_comm.py FOLDER [--dtypes fd]

FOLDER is tests/cupyx_tests/distributed_tests of a checkout of CuPy, whose comm_runner.py has the tests: two processes
each, which make NCCLBackend by rank. Here that is lanterne's. Sparse arrays are left out: lanterne has none on devices.
Prints what failed, and a count; exit code 1 if something did.
"""

import argparse
import importlib
import sys
import time

import lanterne.cupyx

# Of test_comm.py. It returns at once from those of 16-bit whole numbers, which NCCL does not have.
DTYPES = "bilqBILQefdFD"
TEST_S = 60.0


def load(folder):
    """CuPy's comm_runner over lanterne."""
    sys.path.insert(0, folder)
    runner = importlib.import_module("comm_runner")

    class Process(runner.ExceptionAwareProcess):
        """Ends in time, and a crash is a failure, too."""

        def join(self):
            until_s = time.monotonic() + TEST_S
            while self.is_alive() and time.monotonic() < until_s:
                time.sleep(0.01)
            self.kill()
            super().join()
            assert self.exitcode == 0, f"a rank ended with exit code {self.exitcode}"

    runner.ExceptionAwareProcess = Process
    runner.NCCLBackend = lanterne.cupyx.NCCLBackend
    runner.init_process_group = lanterne.cupyx.init_process_group
    return runner


def refuses(*arguments, **options):
    """test_comm.py's tests of bad arguments."""
    try:
        lanterne.cupyx.init_process_group(*arguments, **options)
    except ValueError:
        return
    raise AssertionError("nothing was raised, expected ValueError")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="of comm_runner.py")
    parser.add_argument("--dtypes", default=DTYPES, help="characters (default: %(default)s)")
    args = parser.parse_args()
    runner = load(args.folder)
    verbs = [*"broadcast reduce all_reduce reduce_scatter all_gather send_and_recv send_recv".split()]
    verbs += [*"scatter gather all_to_all".split()]
    tests = {f"{verb} of {dtype}": (getattr(runner, verb), (dtype,), {}) for verb in verbs for dtype in args.dtypes}
    tests |= {"barrier": (runner.barrier, (), {}), "init": (runner.init, (), {})}
    for given, options in (((1, 0), {"backend": "mpi"}), ((0, 0), {}), ((-1, 0), {}), ((2, -1), {}), ((2, 3), {})):
        tests[f"init{given}{options}"] = refuses, given, options
    failed = 0
    for name, (test, given, options) in tests.items():
        try:
            test(*given, **options)
        except Exception as error:
            failed += 1
            print(f"failed {name}: {type(error).__name__}: {error}", flush=True)
    print(f"{len(tests)} tests: {len(tests) - failed} pass, {failed} fail")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
