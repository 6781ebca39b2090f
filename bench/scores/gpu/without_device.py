"""What is measured of the GPU path where there is no GPU: the rows of `./run figures gpu --long`, minutes each."""

import json
import sys
import tempfile
import time
from pathlib import Path

from lanterne.bench.output.load import busy_note
from lanterne.bench.scores.checkout import ROOT, said_by
from lanterne.collectives.auto.load_meter import LoadMeter

SUITE_S = 120.0
SWEEP = ("--kernels", "--inputs", "1-32", "--ops", "all")
HOST_BITS = ("-m", "slow", "tests/kernels/cuda/test_cuda_c_on_host.py")


def spills() -> tuple[str, bool]:
    """Kernels that spill: all dtypes, ops and 1 to 32 inputs on three architectures, and those that wait."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.json"
        _, said = said_by(sys.executable, "-P", "-m", "lanterne", "info", *SWEEP, "--json", str(path))
        if not path.exists():
            return said, False
        kernels = json.loads(path.read_text())["kernels"]
    spilling = sum(kernel["spill_bytes"] > 0 for kernel in kernels)
    return f"{spilling} of {len(kernels):,}", not spilling


def wrong_bits() -> tuple[str, bool]:
    """Kernels whose bits are not the CPU's, run on the host: what pytest says of them."""
    code, said = said_by(sys.executable, "-P", "-m", "pytest", *HOST_BITS)
    return said, code == 0 and "passed" in said


def stand_ins_suite() -> tuple[str, bool | None]:
    """How long the suite over the stand-ins takes once they are built and their kernels compiled, and what it says."""
    suite = "./run", "test", "-m", "host_cuda"
    if not (ROOT / ".venv-host-cuda" / "cache").exists():
        said_by(*suite)
    meter, start_s = LoadMeter(), time.monotonic()
    code, said = said_by(*suite)
    took_s, cores = time.monotonic() - start_s, meter.foreign_cores()
    text = f"{took_s:.0f} s, {meter.started_s:.0f} of CPU: {said}"
    if busy_note(cores):
        return f"{text} (busy: others used {cores:.1f} cores)", None
    return text, code == 0 and took_s <= SUITE_S
