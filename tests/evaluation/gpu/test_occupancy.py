"""What kernels take of a multiprocessor: occupancy by NVIDIA's rules, and machine code that is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.gpu.occupancy import ARCHS, Taken, blocks_at_once, kernel_resources, taken_by
from lanterne.errors import InputError


@pytest.mark.parametrize(
    ("registers", "shared_nbytes", "threads", "arch", "blocks"),
    [
        # As NVIDIA's occupancy calculator has them.
        (32, 0, 256, "sm_90", 8),
        (33, 0, 256, "sm_90", 6),
        (64, 0, 256, "sm_80", 4),
        (65, 0, 256, "sm_80", 3),
        (80, 0, 256, "sm_100", 3),
        (255, 0, 256, "sm_100", 1),
        (16, 0, 32, "sm_80", 32),
        (16, 0, 1024, "sm_80", 2),
        (16, 48 << 10, 128, "sm_80", 3),
        (16, 48 << 10, 128, "sm_90", 4),
    ],
)
def test_blocks_at_once(registers, shared_nbytes, threads, arch, blocks):
    assert blocks_at_once(Taken(registers, 0, shared_nbytes), threads, arch) == blocks


@given(st.integers(16, 255), st.integers(1, 32), st.sampled_from(sorted(ARCHS)))
def test_blocks_fit_the_registers_and_one_more_would_not(registers, warps, arch):
    blocks = blocks_at_once(Taken(registers, 0, 0), 32 * warps, arch)
    assert blocks * warps <= 64 and blocks <= 32
    assert blocks * warps * 32 * registers <= 65536


@given(st.binary(max_size=300), st.booleans())
def test_what_is_no_machine_code_is_refused(data, looks_like_it):
    with pytest.raises(InputError, match="machine code: got"):
        taken_by(b"\x7fELF\x02" + data if looks_like_it else data)


@pytest.mark.parametrize(
    ("inputs", "dtypes", "archs", "message"),
    [
        ([0], ["int8"], ["sm_90"], "inputs: got 0, expected at least 1"),
        ([2], ["int9"], ["sm_90"], "dtype: got 'int9'"),
        ([2], ["int8"], ["sm_91"], "arch: got 'sm_91'"),
    ],
)
def test_kernels_that_there_are_not(inputs, dtypes, archs, message):
    with pytest.raises(InputError, match=message):
        next(kernel_resources(inputs, dtypes, archs))
