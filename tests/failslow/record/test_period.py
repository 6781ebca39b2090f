"""Iteration times from call logs: right from 4 iterations, whatever the program does between its iterations."""

import random

import pytest

from lanterne.errors import InputError
from lanterne.failslow.record import period
from lanterne.failslow.record.period import SETTLED_PERIODS, PeriodTracker, find_marker, iteration_times


def tensor_parallel(layers=32, microbatches=4):
    """Thousands of calls: four a layer, forward and backward alike, then gradients and a norm."""
    layer = ["tp all_gather", "tp reduce_scatter", "tp all_gather", "tp reduce_scatter"]
    backward = ["tp all_gather", "tp all_gather", "tp reduce_scatter", "tp reduce_scatter"]
    return (
        (layer * layers + backward * layers) * microbatches
        + ["dp reduce_scatter"] * 4
        + ["norm"]
        + ["dp all_gather"] * 4
    )


def pipeline(microbatches=8):
    return ["recv", "send"] * microbatches + ["send b", "recv b"] * microbatches + ["embedding"] + ["dp"] * 3


PROGRAMS = {
    "paper figure 8": ["rs", "ag", "ar", "ar"],
    "pipeline": pipeline(),
    "tensor parallel": tensor_parallel(),
    "4363 calls": (["a"] * 17 + ["b"] * 17) * 128 + ["c"] * 5 + ["norm"] + ["c"] * 5,
    "no symbol is rare": ["a", "a", "b", "a", "b", "b", "b"],
    "layers only": ["ag", "rs"] * 24 + ["rs", "ag"] * 24,
    "one call": ["ar"],
    "two calls": ["ar", "norm"],
}


def log(program, iterations, foreign=0.0, shuffle=False, seed=0, iteration_s=2.0):
    """(symbols, times, iteration times) of `iterations` of `program`, each silent for its last 40 %."""
    rng = random.Random(seed)
    symbols, times, lengths = [], [], []
    start = 0.0
    for _ in range(iterations):
        length = iteration_s * rng.uniform(0.97, 1.03)
        step = 0.6 * iteration_s / len(program)
        calls = list(program)
        if shuffle:
            for i in range(0, len(calls) - 1, 2):
                if {calls[i], calls[i + 1]} in ({"recv", "send"}, {"send b", "recv b"}) and rng.random() < 0.5:
                    calls[i], calls[i + 1] = calls[i + 1], calls[i]
        for i, symbol in enumerate(calls):
            if rng.random() < foreign:
                symbols.append(f"foreign {rng.randrange(3)}")
                times.append(start + (i - 0.5) * step)
            symbols.append(symbol)
            times.append(start + i * step)
        lengths.append(length)
        start += length
    return symbols, times, lengths


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("foreign", [0.0, 0.01])
@pytest.mark.parametrize("iterations", [4, 5, 8, 20])
@pytest.mark.parametrize("seed", range(3))
def test_the_period_of_every_program(name, foreign, iterations, seed):
    program = PROGRAMS[name]
    symbols, times, _ = log(program, iterations, foreign, seed=seed)
    found = find_marker(symbols, times)
    assert found is not None
    assert abs(found.spacing - len(program) * (1 + foreign)) <= max(1.0, 0.03 * len(program))


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("foreign", [0.0, 0.01])
@pytest.mark.parametrize("iterations", [4, 20])
@pytest.mark.parametrize("seed", range(3))
def test_iteration_times_within_a_thousandth(name, foreign, iterations, seed):
    symbols, times, lengths = log(PROGRAMS[name], iterations, foreign, seed=seed)
    found = iteration_times(symbols, times)
    assert len(found) >= 0.6 * (iterations - 1)
    for iteration_s in found:
        assert min(abs(iteration_s / length - 1) for length in lengths) < 1e-3, iteration_s


@pytest.mark.parametrize("iterations", [4, 6, 20])
@pytest.mark.parametrize("seed", range(10))
def test_reordered_ties(iterations, seed):
    symbols, times, _ = log(pipeline(), iterations, shuffle=True, foreign=0.01, seed=seed)
    assert abs(find_marker(symbols, times).spacing - len(pipeline())) <= 2


@pytest.mark.parametrize("name", ["paper figure 8", "pipeline", "one call", "two calls"])
@pytest.mark.parametrize("every", [5, 10, 25])
@pytest.mark.parametrize("seed", range(3))
def test_a_call_every_so_many_iterations_makes_no_longer_iteration(name, every, seed):
    symbols, times, _ = log(PROGRAMS[name], 8 * every, seed=seed)
    length = len(PROGRAMS[name])
    for iteration in range(7 * every, -1, -every):
        symbols.insert(iteration * length, "loss")
        times.insert(iteration * length, times[iteration * length] - 1e-4)
    tracker = PeriodTracker()
    for symbol, time_s in zip(symbols, times, strict=True):
        tracker.record(symbol, time_s)
    assert tracker.marker.spacing == length


def measured_by(tracker, symbols, times):
    """The iteration times that `tracker` gives by its last marker."""
    found = [
        (tracker.record(symbol, time_s), tracker.generation) for symbol, time_s in zip(symbols, times, strict=True)
    ]
    return [m for m, generation in found if m is not None and generation == tracker.generation]


def measure(program, iterations, **kwargs):
    symbols, times, lengths = log(program, iterations, **kwargs)
    tracker = PeriodTracker()
    return tracker, measured_by(tracker, symbols, times), lengths


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("foreign", [0.0, 0.01])
def test_streaming_times_within_a_thousandth(name, foreign):
    iterations = 40 if len(PROGRAMS[name]) < 200 else 12
    tracker, measured, lengths = measure(PROGRAMS[name], iterations, foreign=foreign, iteration_s=30.0)
    assert len(measured) >= 0.5 * iterations
    for iteration_s in measured:
        assert min(abs(iteration_s / length - 1) for length in lengths) < 1e-3, iteration_s
    assert tracker.dropped == 0


def test_a_slow_spell_shows():
    symbols, times, lengths = [], [], []
    start = 0.0
    for i in range(80):
        length = 3.0 if 50 <= i < 60 else 2.0
        for k, symbol in enumerate(pipeline()):
            symbols.append(symbol)
            times.append(start + k * 0.02)
        start += length
        lengths.append(length)
    measured = measured_by(PeriodTracker(), symbols, times)
    assert sum(m == pytest.approx(3.0) for m in measured) == 10
    assert {round(m, 6) for m in measured} == {2.0, 3.0}


def test_one_call_type_with_pauses():
    """Eight equal all-reduces an iteration, most of which is the pause after them: only that tells where one ends."""
    times = [2.0 * iteration + 0.1 * call for iteration in range(5) for call in range(8)]
    found = find_marker(["ar"] * 40, times)
    assert (found.spacing, found.gap_s is not None) == (8, True)


@pytest.mark.parametrize("every", [10, 20, 25, 50])
@pytest.mark.parametrize("steps", [60, 120, 400])
def test_a_pause_that_recurs_is_no_iteration(every, steps):
    """A step of one call of 50 ms, and a checkpoint of 0.3 s after every tenth, twentieth, and so on."""
    rng = random.Random(every)
    times, now = [], 0.0
    for step in range(steps):
        now += 0.05 * rng.uniform(0.97, 1.03)
        times.append(now)
        now += 0.3 if step % every == every - 1 else 0.0
    assert find_marker(["ar"] * steps, times).spacing == 1


def test_a_marker_among_foreign_calls_that_look_like_it():
    tracker, measured, _ = measure(pipeline(), 60)
    assert tracker.record("embedding", 1e6) is None
    assert len(measured) >= 50


def test_learning_ends_and_memory_is_returned():
    tracker, _, _ = measure(pipeline(), 20 + SETTLED_PERIODS, iteration_s=20.0)
    assert tracker._symbols == []
    assert tracker.generation >= 1


def test_a_log_that_only_repeats_is_not_looked_at_again(monkeypatch):
    looks, find = [], period.find_marker

    def seen(symbols, times_s):
        looks.append(len(symbols))
        return find(symbols, times_s)

    monkeypatch.setattr(period, "find_marker", seen)
    tracker = PeriodTracker()

    def go(calls, count, begin_s):
        for i in range(count):
            tracker.record(calls[i % len(calls)], begin_s + 0.01 * i)

    go(["a", "a", "b"], 2000, 0.0)
    assert looks[-1] < 200 and tracker.marker.spacing == 3
    # A call every tenth iteration ends that, and a longer iteration is found once there is one.
    go([*["a", "a", "b"] * 9, "c"], 28 * 200, 20.0)
    assert looks[-1] > 4000


def test_a_clock_that_jumps_back():
    tracker, _measured, _ = measure(pipeline(), 30)
    assert tracker.record("recv", 0.0) is None
    assert tracker.dropped == 1
    symbols, times, _ = log(pipeline(), 5)
    again = [tracker.record(s, t) for s, t in zip(symbols, times, strict=True)]
    assert all(m is None or 1.9 < m < 2.1 for m in again)


def test_a_program_that_changes():
    tracker, _, _ = measure(pipeline(), 30)
    symbols, times, _ = log(PROGRAMS["paper figure 8"] * 3 + ["embedding"], 400)
    assert len(measured_by(tracker, symbols, [1000.0 + t for t in times])) >= 45


@pytest.mark.parametrize("calls", [[], ["a"], ["a", "b", "c"], list(map(str, range(200)))])
def test_nothing_recurs(calls):
    assert find_marker(calls, [float(i) for i in range(len(calls))]) is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bad_time(bad):
    with pytest.raises(InputError, match="expected seconds"):
        PeriodTracker().record("a", bad)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if len(PROGRAMS[name]) < 100])
@pytest.mark.parametrize(("foreign", "iteration_s"), [(0.0, 20.0), (0.01, 0.1)])
@pytest.mark.parametrize("seed", range(3))
def test_many_calls_at_once_are_taken_as_each_by_itself(name, foreign, iteration_s, seed):
    """A program that changes, and a clock that jumps back, too."""
    rng = random.Random(seed)
    symbols, times, _ = log(PROGRAMS[name], 60, foreign, seed=seed, iteration_s=iteration_s)
    more, later, _ = log(PROGRAMS["paper figure 8"] * 3 + ["embedding"], 40, seed=seed)
    symbols, times = symbols + more, times + [time_s + times[-1] * rng.choice([0.5, 1.1]) for time_s in later]
    one, many = PeriodTracker(), PeriodTracker()
    expected, found, begin = [], [], 0
    for at, (symbol, time_s) in enumerate(zip(symbols, times, strict=True)):
        generation = one.generation
        iteration_s = one.record(symbol, time_s)
        if iteration_s is not None or one.generation != generation:
            expected.append((at, iteration_s))
    while begin < len(symbols):
        end = begin + rng.randrange(1, 60)
        found += [(begin + at, time_s) for at, time_s in many.record_all(symbols[begin:end], times[begin:end])]
        begin = end
    assert found == expected and vars(one) == vars(many)
