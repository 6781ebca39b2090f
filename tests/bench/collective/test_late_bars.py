"""What `lanterne bench` says of a late rank below its table, and on a busy machine."""

import io
import subprocess
import sys

import pytest

import lanterne
from lanterne.bench.collective.all_reduce import print_late
from lanterne.collectives.auto.load_meter import BUSY_CORES, LoadMeter


def said(cores, auto_s, delay_s=0.05):
    records = [
        {"algorithm": name, "chosen": None, "emulated_bytes_per_s": None}
        | {"nbytes": nbytes, "delay_s": delay, "late_s": [late_s] * 3 if delay else []}
        for delay in {0.0, delay_s}
        for nbytes in (1024, 4 << 20)
        for name, late_s in (("auto", auto_s), ("ring", 2e-3))
    ]
    file = io.StringIO()
    print_late({"results": records, "foreign_cores": cores}, file)
    return file.getvalue()


@pytest.mark.parametrize(
    ("cores", "auto_s", "verdict"),
    [
        (0.0, 1e-3, "auto gains: 0.50 of ring's time, the median of 3 rounds"),
        (0.0, 2e-3, "auto gains nothing here: 1.00 of ring's time"),
        (2 * BUSY_CORES, 1e-3, "busy: others used 0.6 cores meanwhile, so these times say little, and no verdict"),
    ],
)
def test_the_verdict_and_none_on_a_busy_machine(cores, auto_s, verdict):
    text = said(cores, auto_s)
    assert verdict in text and len(text.splitlines()) == 5  # an empty one first
    auto, ring = (line for line in text.splitlines() if "==" in line)
    assert ring.count("=") == 50 and auto.count("=") == round(50 * auto_s / 2e-3)


def test_without_a_late_rank_nothing_is_said():
    assert said(0.0, 1e-3, delay_s=0.0) == ""


@pytest.mark.timing
def test_others_are_counted_and_ranks_are_not():
    def run(comm):
        meter = LoadMeter()
        sum(range(20_000_000))
        return meter.foreign_cores(comm)

    (quiet,) = lanterne.spawn(1, run)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        (busy,) = lanterne.spawn(1, run)
        other.kill()
    assert quiet < 0.3 < busy
