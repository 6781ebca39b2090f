"""The benchmark of forged connections: a job withstands some of each kind; what would be missed is."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from evaluation import strangers

# A rank's worker, a receive of tag 7, and what a stranger sends to its port: only a right tag is received.
HEARD = """
import os, time
from concurrent.futures import ThreadPoolExecutor
from evaluation.strangers import ports_of
from evaluation.ucx_strangers import UcxStranger
from lanterne.transport.ucx.worker import load_ucxx, make_worker
ucxx, array = load_ucxx()
_, worker = make_worker(ucxx, {})
((_, port),) = ports_of([os.getpid()])
buffer, stranger = bytearray(8), UcxStranger()
receive = worker.tag_recv(array(memoryview(buffer)), ucxx.UCXXTag(7), ucxx.UCXXTagMaskFull)
for tag in (8, 7):
    with ThreadPoolExecutor() as pool:
        stranger.send(port, tag, bytearray(b"stranger"), "a word")
        sent = pool.submit(stranger.leave, 60.0)
        until_s = time.monotonic() + 60.0
        while not (sent.done() and (receive.completed or tag == 8)) and time.monotonic() < until_s:
            worker.progress_once()
    print(tag, sent.result()["a word"], receive.completed, bytes(buffer))
"""


def test_what_a_ucx_stranger_sends_comes_if_its_tag_is_right():
    pytest.importorskip("ucxx")
    variables = os.environ | strangers.UCX_ON_LOOPBACK
    ended = subprocess.run(
        [sys.executable, "-c", HEARD], env=variables, capture_output=True, text=True, timeout=120, check=False
    )
    expected = ["8 1 False " + str(bytes(8)), "7 2 True b'stranger'"]
    assert ended.stdout.splitlines() == expected, ended.stderr


@pytest.mark.slow
def test_a_job_over_ucx_goes_on():
    pytest.importorskip("ucxx")
    options = ["--transport", "ucx", "--connections", "40", "--bursts", "1", "--json", "-"]
    command = [sys.executable, "-m", "evaluation", "strangers", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    (record,) = json.loads(ended.stdout)["results"]
    assert (record["wrong"], record["crashed"], record["ports"]) == (0, False, strangers.RANKS), ended.stderr
    assert 0 < sum(record["connections"].values()) <= 40 and record["call_s"] and record["quiet_call_s"]


@pytest.mark.slow
def test_a_job_goes_on():
    command = [sys.executable, "-m", "evaluation", "strangers", "--connections", "40", "--bursts", "1"]
    ended = subprocess.run([*command, "--json", "-"], capture_output=True, text=True, timeout=120, check=False)
    (record,) = json.loads(ended.stdout)["results"]
    assert (record["wrong"], record["crashed"], record["ports"]) == (0, False, 3), ended.stderr
    assert set(record["connections"].values()) == {4}
    assert record["grown_nbytes"] <= strangers.GROWTH_NBYTES and record["call_s"] and record["quiet_call_s"]


def record_of(
    folder, *, kind=strangers.Attack, slower=1.0, wrong=0, grown=0, exit_code=0, ranks=strangers.RANKS, made=1
):
    for rank in range(ranks):
        np.savez(folder / f"rank{rank}.npz", times=[(0.5, 1e-3), (1.5, 1e-3 * slower)], wrong=wrong)
    attack = SimpleNamespace(bursts=[(1, 2)], calm=[(0, 1)], made={"drip": made}, ports={1}, grown_nbytes=grown)
    attack.what, attack.bars = kind.what, kind.bars
    return strangers.verdict(folder, attack, exit_code)


@pytest.mark.parametrize(
    ("options", "missed"),
    [
        *(({}, False), ({"slower": 1.2}, True), ({"wrong": 1}, True), ({"grown": 65 << 20}, True)),
        *(({"exit_code": 1}, True), ({"slower": 9.0, "grown": 65 << 20, "kind": strangers.UcxAttack}, False)),
        ({"wrong": 1, "kind": strangers.UcxAttack}, True),
        ({"made": 0}, True),
    ],
)
def test_the_verdict(tmp_path, options, missed):
    record = record_of(tmp_path, **options)
    assert json.loads(json.dumps(record))["missed"] == missed


def test_bars_are_shown_where_they_are_asked_for(tmp_path, capsys):
    document = {"results": [record_of(tmp_path, slower=1.2)]}
    strangers.print_records(document, sys.stdout)
    assert "1.20 of it" in (shown := capsys.readouterr().out) and "bar" not in shown
    strangers.print_records(document, sys.stdout, with_bars=True)
    assert "1.20 of it (bar 1.1)" in capsys.readouterr().out


def test_a_rank_that_ended_is_missed(tmp_path):
    assert record_of(tmp_path, ranks=1)["crashed"]
