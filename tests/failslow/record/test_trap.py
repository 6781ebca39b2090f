"""Jobs that are held before a collective and let go: nobody is past it, nobody waits for ever."""

import threading
import time

import numpy as np
import pytest

import lanterne
from lanterne.errors import InputError
from lanterne.failslow.record.trap import Trap
from lanterne.failslow.validate.validate import Injected


def rank_calls(trap, calls, barrier, held):
    for call in range(1, calls + 1):
        if trap.holds():
            held.append(call)
        barrier.wait()


def run_ranks(path, n, calls, ask_at=()):
    """The calls before which each of n ranks was held, one asking before those of `ask_at`."""
    traps = [Trap(path, rank, n) for rank in range(n)]
    barrier, held = threading.Barrier(n), [[] for _ in range(n)]
    threads = [
        threading.Thread(target=rank_calls, args=(trap, calls, barrier, mine))
        for trap, mine in zip(traps, held, strict=True)
    ]
    for _ in ask_at:
        traps[-1].ask()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for trap in traps:
        trap.close()
    return held


def test_all_are_held_before_the_same_call_and_go_on(tmp_path):
    assert run_ranks(tmp_path / "trap", 4, 6, ask_at=(1,)) == [[2]] * 4
    assert run_ranks(tmp_path / "trap", 3, 4) == [[]] * 3


def test_a_rank_that_does_not_come_frees_the_others(tmp_path):
    first, other = (Trap(tmp_path / "trap", rank, 2, patience_s=0.05) for rank in range(2))
    other.ask()
    assert not first.holds()
    assert not first.holds()
    # It comes late, and finds that nobody waits; another time it comes.
    assert not other.holds() and not other.holds()
    other.ask()
    assert not first.holds() and not other.holds()
    thread = threading.Thread(target=other.holds)
    thread.start()
    assert first.holds()
    thread.join(30)


def test_what_a_held_rank_has_begun_goes_on(tmp_path):
    """Rank 0 is held; rank 1 only comes once rank 0 has advanced what rank 1 waits for."""
    advanced = threading.Event()
    first = Trap(tmp_path / "trap", 0, 2, progress=advanced.set)
    other = Trap(tmp_path / "trap", 1, 2)
    first.ask()
    first.holds(), other.holds()
    thread = threading.Thread(target=lambda: advanced.wait(30) and other.holds())
    thread.start()
    assert first.holds()
    thread.join(30)


@pytest.mark.timing
@pytest.mark.parametrize("culprit", [0, 2])
def test_a_watched_job_is_held_and_its_slow_rank_validated(culprit):
    """Its loop knows nothing of it, and what it computes is right."""

    def main(comm):
        mine = Injected(3.0, 3.0) if comm.rank == culprit else Injected()
        options = {"injected": mine, "limit_s": 2.0, "sizes": (256 << 10,)}
        x = np.full(100, comm.rank + 1.0)
        with lanterne.watch(comm, validates=options) as watch:
            begun_s = time.monotonic()
            count = 0
            while True:
                is_slow = count >= 60 and comm.rank == culprit
                time.sleep(12e-3 if is_slow else 2e-3)
                # One that is under way while the others are held.
                request = comm.start_all_reduce(x, y := np.empty_like(x))
                ended = np.array([float(watch.validations != [] or time.monotonic() - begun_s > 60)])
                comm.all_reduce(ended, ended, op="max")
                request.wait()
                assert (y == 10.0).all()
                count += 1
                if ended[0]:
                    break
            comm.split(0).close()
        assert "all_reduce" not in vars(comm)
        return watch.validations, watch.report

    outcomes = lanterne.spawn(4, main)
    for validations, report in outcomes:
        assert validations and validations[0] == outcomes[0][0][0], (validations, report)
        assert {call["name"] for call in report["calls"]} == {"all_reduce", "start_all_reduce"}, (validations, report)
    assert culprit in {rank for finding in outcomes[0][0][0].findings for rank in finding.ranks}


def test_one_rank_cannot_be_compared():
    def main(comm):
        with lanterne.watch(comm, validates=True):
            pass

    with pytest.raises(InputError, match="got validates and 1 rank"):
        lanterne.spawn(1, main)


def test_rank_0_that_comes_when_the_others_have_gone_on_holds_nobody(tmp_path):
    first, other = (Trap(tmp_path / "trap", rank, 2, patience_s=0.05) for rank in range(2))
    other.ask()
    assert not first.holds() and not other.holds()
    # It waits for twice as long as rank 0 would, and gives up.
    assert not other.holds()
    assert not first.holds()
    other.ask()
    assert not first.holds() and not other.holds()
    thread = threading.Thread(target=first.holds)
    thread.start()
    assert other.holds()
    thread.join(30)
