"""The plot of `lanterne bench`: what its lines show, and that it is drawn."""

import pytest

from lanterne.bench.cli import main
from lanterne.bench.collective.plot import draw, plot
from lanterne.collectives.late.arrivals import ArrivalLog

MIB = 1 << 20


def record(algorithm, nbytes, delay_s, time_s, late_s):
    found = {"collective": "all_reduce", "algorithm": algorithm, "ranks": 4, "nbytes": nbytes, "delay_s": delay_s}
    found["emulated_bytes_per_s"] = None
    return found | {"time_s": time_s, "late_s": late_s}


def document(rate):
    results = [
        record(name, nbytes, delay_s, [cost + delay_s] * 3, [cost, cost / 2, 9 * cost] if delay_s else [])
        for name, cost in (("ring", 0.2), ("late_join", 0.1))
        for nbytes in (MIB, 2 * MIB)
        for delay_s in (0.0, 0.5)
    ]
    return {"results": results, "rate_bytes_per_s": rate}


@pytest.fixture
def axes():
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2)
    yield axes
    plt.close(figure)


def lines(axis):
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axis.get_lines()}


def test_medians_in_multiples_of_the_rate(axes):
    draw(*axes, document(rate=MIB))
    over_size, over_delay = map(lines, axes)
    # Over size at the longest delay, over delay at the largest size; nobody late: from the common call.
    assert over_size["ring"] == ([MIB, 2 * MIB], [0.2, pytest.approx(0.1)])
    assert over_delay["ring"] == ([0, 0.25], [0.1, pytest.approx(0.1)])
    assert over_delay["late_join"] == ([0, 0.25], [0.05, pytest.approx(0.05)])
    assert "multiples of s/rate" in axes[0].get_ylabel()


def test_milliseconds_without_a_rate(axes):
    draw(*axes, document(rate=None))
    over_size, over_delay = map(lines, axes)
    assert over_size["late_join"] == ([MIB, 2 * MIB], [100, 100])
    assert over_delay["ring"] == ([0, 500], [200, 200])
    assert axes[1].get_xlabel().endswith("ms")
    assert axes[1].yaxis.get_major_formatter()(200) == "200"
    assert "band" in axes[0].get_xlabel() and axes[0].get_legend() is None
    named = {text.get_text(): text.get_color() for text in axes[1].texts}
    assert named.keys() == {"ring", "late_join"} and len(set(named.values())) == 2


@pytest.mark.parametrize("ranks", [None, [], [3, 3, 1, 3]])
def test_pictures(tmp_path, ranks):
    arrivals = None
    if ranks is not None:
        log = ArrivalLog(4)
        for rank in ranks:
            log.note(rank, 0.01, True)
        arrivals = log.snapshot()
    for suffix, start in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        file = tmp_path / f"picture.{suffix}"
        plot(file, [document(rate=1e6)], arrivals)
        assert file.read_bytes().startswith(start), (suffix, start)


def test_command(tmp_path, capsys):
    file = tmp_path / "late.png"
    words = [
        "--algorithm",
        "ring,late_join",
        "--bytes",
        "64K,256K",
        "--late-rank",
        "2",
        "--delay",
        "0,5ms",
        "--iterations",
        "2",
    ]
    assert (
        main(["bench", "all_reduce", "-n", "3", "--transport", "local", *words, "--rate", "1gbit", "--plot", str(file)])
        == 0
    )
    assert file.read_bytes().startswith(b"\x89PNG")
    assert "(s/rate)" in capsys.readouterr().out
    assert main(["bench", "all_reduce", "-n", "3", "--transport", "local", "--plot", "late.txt"]) == 2
    assert main(["bench", "all_reduce", "-n", "3", "--transport", "local", "--rate", "fast"]) == 2
    assert "--rate: got 'fast'" in capsys.readouterr().err
