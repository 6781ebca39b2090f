"""The benchmark's own data and clock: inputs whose reductions are exact, outputs that cannot be right by accident."""

import numpy as np
import pytest

from lanterne.bench.collective.measure import (
    BUS_FACTOR,
    CollectiveCase,
    expected_reduction,
    from_bfloat16,
    measure,
    pattern,
    to_bfloat16,
)
from lanterne.bench.collective.settings import COLLECTIVES
from lanterne.collectives.jobs import spawn

DTYPES = ["float16", "bfloat16", "float32", "float64", "int8", "uint8", "int64", "uint32"]


def numbers(array, dtype):
    """The elements of `array`, of `dtype`, as numbers of Python."""
    return (from_bfloat16(array) if dtype == "bfloat16" else array).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["sum", "prod", "min", "max"])
def test_expected_reductions_are_exact(dtype, op):
    exact = [int(value) for value in numbers(pattern(50, dtype, op, 0), dtype)]
    combine = {"sum": int.__add__, "prod": int.__mul__, "min": min, "max": max}[op]
    for rank in range(1, 64):
        exact = [combine(a, int(b)) for a, b in zip(exact, numbers(pattern(50, dtype, op, rank), dtype), strict=True)]
    got = numbers(expected_reduction(50, dtype, op, 64), dtype)
    if "float" in dtype:
        assert got == exact
    else:
        bits = np.dtype(dtype).itemsize * 8
        assert [int(value) % 2**bits for value in got] == [value % 2**bits for value in exact]


@pytest.mark.parametrize(
    ("value", "bits"), [(1, 0x3F80), (-2, 0xC000), (256, 0x4380), (1 + 2**-8, 0x3F80), (1 + 3 * 2**-8, 0x3F82)]
)
def test_bfloat16_is_rounded_to_even(value, bits):
    assert to_bfloat16(np.array([value])).tolist() == [bits]


def test_patterns_differ_between_ranks_and_positions():
    patterns = [pattern(1000, "float32", "sum", rank) for rank in range(8)]
    assert len({array.tobytes() for array in patterns}) == 8
    assert len(np.unique(patterns[0])) == 17


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_is_measured_and_right(collective, dtype):
    def rank_main(comm):
        case = CollectiveCase(comm, collective, 40, dtype, "sum")
        return measure(case, comm.algorithms(collective), iterations=2, warmup=0)

    for result in spawn(4, rank_main):
        assert len(result) >= 2, result
        for times_s, lates_s, wrong in result.values():
            assert len(times_s) == 2 and min(times_s) > 0 and lates_s == [] and wrong == 0, (
                result,
                times_s,
                lates_s,
                wrong,
            )


def test_a_wrong_element_is_counted_once_on_every_rank():
    class Broken(CollectiveCase):
        def call(self, algorithm, **options):
            super().call(algorithm, **options)
            if self.comm.rank == 1:
                self.out[7] += 1

    def rank_main(comm):
        return measure(Broken(comm, "all_reduce", 40, np.dtype("int32"), "sum"), ["ring"], iterations=3, warmup=1)

    assert [result["ring"][2] for result in spawn(3, rank_main)] == [4, 4, 4]


def test_an_unwritten_output_is_wrong():
    class Idle(CollectiveCase):
        def call(self, algorithm, **options):
            pass

    def rank_main(comm):
        idle = Idle(comm, "all_reduce", 40, np.dtype("float64"), "sum")
        return measure(idle, ["ring"], iterations=1, warmup=0)["ring"][2]

    assert spawn(2, rank_main) == [80, 80]


def test_the_late_rank_is_late_and_its_own_time_is_told():
    def rank_main(comm):
        case = CollectiveCase(comm, "all_reduce", 8, np.dtype("float32"), "sum")
        return measure(case, ["ring"], late_rank=2, delay_s=0.05, iterations=3, warmup=0)

    times_s, lates_s, wrong = spawn(3, rank_main)[0]["ring"]
    assert wrong == 0 and all(time_s >= 0.05 for time_s in times_s)
    # What lateness costs is what is left of the time after the late rank's call, which cannot come before t0 + delay.
    assert all(0 < late_s <= time_s - 0.05 + 1e-9 for time_s, late_s in zip(times_s, lates_s, strict=True))


def test_bus_factors():
    assert [BUS_FACTOR[name](4) for name in ("all_reduce", "all_gather", "broadcast")] == [1.5, 0.75, 1]
