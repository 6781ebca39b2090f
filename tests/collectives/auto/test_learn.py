"""What is measured for `auto`: the fit, the cache, and that all ranks know the same."""

import json
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanterne.collectives.auto import learn as learn_module
from lanterne.collectives.auto import trials
from lanterne.collectives.auto.learn import MAX_AGE_S, MISFIT, fit, learn
from lanterne.collectives.auto.load_meter import LoadMeter
from lanterne.collectives.communicator import core_of
from lanterne.collectives.jobs import spawn

SIZES = [64, 4096, 32768, 262144, 1048576]


def test_a_line_is_found_again():
    model = fit(SIZES, [5e-6 + 2e-10 * size for size in SIZES], 1e-10)
    assert model.pieces == () and model.gamma_s_per_byte == 1e-10
    assert model.alpha_s == pytest.approx(5e-6, rel=1e-6) and model.beta_s_per_byte == pytest.approx(2e-10, rel=1e-6)


@given(st.lists(st.floats(1e-6, 1.0), min_size=5, max_size=5))
def test_whatever_was_measured_the_model_is_near_it_or_near_what_a_larger_message_took(times_s):
    model = fit(SIZES, times_s)
    times_s = [min(times_s[i:]) for i in range(len(times_s))]
    predicted = model.message_s(np.array(SIZES, float))
    if not model.pieces:
        assert (np.abs(predicted - times_s) <= MISFIT * np.array(times_s) * (1 + 1e-9)).all()
    else:
        assert predicted[:-1] == pytest.approx(times_s[:-1], rel=1e-6)


def test_a_bent_line_gets_pieces():
    model = fit(SIZES, [2e-6, 2.1e-6, 20e-6, 60e-6, 300e-6])
    assert [piece.nbytes for piece in model.pieces] == SIZES[:-1]


@pytest.fixture(autouse=True)
def steady(monkeypatch):
    """What was measured a moment ago is taken, whatever the machine does now."""
    monkeypatch.setattr(learn_module, "DISTURBED", 0.0)
    monkeypatch.setattr(learn_module, "DISTURBED_BUSY", 0.0)


def test_what_was_measured_beside_other_work_is_measured_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("LANTERNE_CACHE", str(tmp_path))
    monkeypatch.setenv("LANTERNE_TRIALS", "off")
    monkeypatch.setattr(learn_module, "DISTURBED", 0.01)
    monkeypatch.setattr(learn_module, "DISTURBED_BUSY", 0.01)
    (model, *_), _ = spawn(2, learn)
    (file,) = tmp_path.iterdir()
    document = json.loads(file.read_text())
    for slower, source in ((1, "cache"), (1e4, "measured"), (1, "cache")):
        if slower > 1:
            document["model"] |= {"alpha_s": slower * model.alpha_s, "beta_s_per_byte": 1.0, "pieces": []}
            file.write_text(json.dumps(document))
        first, other = spawn(2, learn)
        assert first == other and first.source == source, (slower, source)
        assert first.model.alpha_s < 100 * model.alpha_s, (slower, source)


@pytest.mark.parametrize("cores", [0.0, 2.0])
def test_of_what_was_measured_while_others_were_busy_less_is_enough(tmp_path, monkeypatch, cores):
    monkeypatch.setenv("LANTERNE_CACHE", str(tmp_path))
    monkeypatch.setattr(LoadMeter, "foreign_cores", lambda meter, comm: cores)
    spawn(2, learn)
    (file,) = tmp_path.iterdir()
    document = json.loads(file.read_text())
    assert document["busy"] == bool(cores)
    # A call takes less than any part of what is predicted.
    monkeypatch.setattr(learn_module, "DISTURBED_BUSY", 1e9)
    assert [learned.source for learned in spawn(2, learn)] == ["measured" if cores else "cache"] * 2


@pytest.fixture
def few_trials(monkeypatch):
    """Trials, which all other tests go without, of two sizes."""
    monkeypatch.delenv("LANTERNE_TRIALS", raising=False)
    monkeypatch.setattr(trials, "TRIED_NBYTES", trials.TRIED_NBYTES[:2])
    monkeypatch.setattr(trials, "TRIALS", 2)


def test_the_cache_is_read_and_a_broken_one_is_measured_over(tmp_path, monkeypatch, few_trials):
    monkeypatch.setenv("LANTERNE_CACHE", str(tmp_path))
    first, other = spawn(2, learn)
    model, factors, source, topology = first
    assert first == other and topology is None and source == "measured"
    (file,) = tmp_path.iterdir()
    assert spawn(2, learn) == [(model, factors, "cache", None)] * 2
    os.utime(file, (0, 0))
    again = spawn(2, learn)
    assert again[0] == again[1] and again[0][0] == model and again[0][2] == "cache"
    assert file.stat().st_mtime > 0, "and the next need not try again"
    before = {row[:3]: row.factor for row in factors}
    assert {row.nbytes for row in factors} == set(trials.TRIED_NBYTES)
    assert before.keys() == {row[:3] for row in again[0][1]}
    assert all(row.factor < 2 * before[row[:3]] for row in again[0][1]), "what was known counts most"
    document = json.loads(file.read_text())
    assert document["factors"] == [list(row) for row in again[0][1]], "and is kept"
    document["measured_s"] -= MAX_AGE_S + 60
    file.write_text(json.dumps(document))
    assert spawn(2, learn)[0][2] == "measured", "a model of long ago is measured anew"
    for broken in ('{"schema_version": 4, "measured_s": 0, "model": {"alpha_s": -1}, "factors": []}', "[1, 2"):
        file.write_text(broken)
        assert spawn(2, learn)[1][2] == "measured", broken


def test_of_ranks_that_share_memory_the_second_job_tries(tmp_path, monkeypatch, few_trials):
    monkeypatch.setenv("LANTERNE_CACHE", str(tmp_path))
    monkeypatch.setattr(trials, "TRIED_NBYTES", (1 << 10, 1 << 20))
    tried = [spawn(3, lambda comm: learn(comm, shares_memory=True))[0] for _ in range(3)]
    assert [learned.source for learned in tried] == ["measured", "cache", "cache"]
    assert [{row.nbytes for row in learned.factors} for learned in tried] == [set(), {1 << 20}, {1 << 20}]


def test_without_trials_the_model_alone_is_kept_apart_from_one_with(tmp_path, monkeypatch, few_trials):
    monkeypatch.setenv("LANTERNE_CACHE", str(tmp_path))
    monkeypatch.setenv("LANTERNE_TRIALS", "off")
    ((model, factors, source, _), _) = spawn(2, learn)
    assert (factors, source) == ((), "measured")
    (file,) = tmp_path.iterdir()
    os.utime(file, (0, 0))
    assert spawn(2, learn) == [(model, (), "cache", None)] * 2
    monkeypatch.delenv("LANTERNE_TRIALS")
    assert spawn(2, learn)[0][2] == "measured"


def test_a_cache_that_cannot_be_written_is_no_error(monkeypatch):
    monkeypatch.setenv("LANTERNE_CACHE", "/proc/nowhere")
    assert [learned.source for learned in spawn(2, learn)] == ["measured"] * 2


def test_ranks_that_share_hosts_measure_inside_and_between():
    def measured(communicator):
        core_of(communicator).hosts = communicator.hosts = ("a", "b", "a")
        communicator.tuning.learn()
        choice = communicator.tuning.choose("all_reduce", 1 << 16)
        return communicator.tuning.topology, choice

    (topology, choice), *others = spawn(3, measured)
    assert others == [(topology, choice)] * 2
    assert topology.nodes == ((0, 2), (1,)) and {links.kind for links in topology.links} == {"inside", "nic"}


@pytest.mark.parametrize(
    ("sizes", "load"),
    # Of hosts of 1, 3 and 4 ranks the last one's NIC has two messages of the first ring, and one of each of two others;
    # three rings were taken for three times the load, and a NIC of four ranks for four of their own.
    [((4, 4), 4.0), ((2, 2, 2), 2.0), ((1, 3, 4), 2.0), ((1, 1, 3), 1.0), ((2, 3, 3), 2.5)],
)
def test_what_rings_of_all_places_put_on_the_busiest_node(sizes, load):
    ranks = iter(range(sum(sizes)))
    nodes = tuple(tuple(next(ranks) for _ in range(size)) for size in sizes)
    assert learn_module._load_together(nodes) == load
