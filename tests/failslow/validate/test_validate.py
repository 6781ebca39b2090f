"""Validation on ranks that are threads, over emulated links: what was made slow is found, and only that is."""

import json
import sys
import time
from itertools import combinations
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lanterne
from lanterne.errors import InputError, Unavailable
from lanterne.failslow.validate import loads as gemm
from lanterne.failslow.validate.links import neighbours, with_witnesses
from lanterne.failslow.validate.loads import left_out
from lanterne.failslow.validate.probe import take_turns
from lanterne.failslow.validate.validate import Injected, validate
from lanterne.failslow.validate.validation import Validation
from lanterne.pipeline.planes.plane_makers import shaped
from lanterne.transport.shaped import Link

# So slow that the machine's own noise is small beside it.
USUAL = Link(bandwidth_bytes_per_s=20e6)
OPTIONS = {"limit_s": 2.0, "sizes": (256 << 10,), "repetitions": 2}


def spawn_validate(n, slow_links=None, injected=None, **options):
    """Each rank's Validation: all links equal but for `slow_links` {(src, dst): Link}."""
    links = {(a, b): USUAL for pair in combinations(range(n), 2) for a, b in (pair, pair[::-1])} | (slow_links or {})

    def main(comm):
        mine = (injected or {}).get(comm.rank, Injected())
        return validate(shaped(comm, links), injected=mine, **OPTIONS | options)

    return lanterne.spawn(n, main)


def named(validation):
    return {(finding.kind, finding.when, *(finding.ranks or finding.links)) for finding in validation.findings}


@pytest.mark.timing
def test_slow_link_one_direction():
    outcomes = spawn_validate(4, {(0, 1): Link(bandwidth_bytes_per_s=5e6)})
    assert all(outcome == outcomes[0] for outcome in outcomes)
    found = named(outcomes[0])
    assert ("link", "alone", (0, 1)) in found
    others = found - {("link", "alone", (0, 1))}
    assert not any(kind.startswith("link") and when == "alone" for kind, when, *_ in others)


@pytest.mark.timing
def test_slow_latency():
    outcome = spawn_validate(3, {(2, 1): Link(latency_s=20e-3)})[0]
    assert ("link", "alone", (2, 1)) in named(outcome)
    assert Validation.from_json(json.loads(json.dumps(outcome.to_json()))) == outcome
    assert "latency" in next(f.evidence for f in outcome.findings if f.links == ((2, 1),))


@pytest.mark.timing
def test_slow_only_when_both_run():
    found = named(spawn_validate(2, injected={1: Injected(1.0, 4.0)})[0])
    assert ("compute", "together", 1) in found
    assert not {kind for kind, when, *_ in found if when == "alone" and kind == "compute"}


@pytest.mark.timing
def test_suspects_only_and_everybody_learns_the_outcome():
    outcomes = spawn_validate(5, {(3, 4): Link(bandwidth_bytes_per_s=4e6)}, ranks=(1, 3, 4))
    assert all(outcome.to_json() == outcomes[0].to_json() for outcome in outcomes)
    assert outcomes[0].ranks == (1, 3, 4)
    assert {end for batch in outcomes[0].passes for link in batch for end in link} == {1, 3, 4}
    assert ("link", "alone", (3, 4)) in named(outcomes[0])


@pytest.mark.timing
def test_named_links_only():
    outcome = spawn_validate(5, links=((0, 3), (3, 0), (1, 4)))[0]
    assert sorted(link for batch in outcome.passes for link in batch) == [(0, 3), (1, 4)]
    assert outcome.ranks == (0, 1, 3, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ranks": (0,)}, "expected at least 2"),
        ({"ranks": (0, 0)}, "each once"),
        ({"ranks": (0, 7)}, "expected at least 2 of the 2"),
        ({"links": ((0, 0),)}, "expected"),
        ({"ranks": (0, 1), "links": ((0, 5),)}, "expected two different ranks"),
        ({"links": ()}, "expected at least 2"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(InputError, match=message):
        lanterne.spawn(2, lambda comm: validate(comm, **options))


@given(
    machines=st.lists(st.integers(0, 2), min_size=2, max_size=12),
    cores=st.fixed_dictionaries({m: st.integers(2, 4) for m in range(3)}),
)
def test_turns_leave_every_rank_a_core(machines, cores):
    pairs = [(rank, rank + 1) for rank in range(0, len(machines) - 1, 2)]
    turns = take_turns(pairs, machines, cores)
    assert sorted(pair for turn in turns for pair in turn) == pairs
    for turn in turns:
        for machine, count in cores.items():
            active = sum(machines[rank] == machine for pair in turn for rank in pair)
            assert active <= count or machines.count(machine) <= count, (turn, machine, count)


def test_ranks_with_a_core_each_need_no_turns():
    assert len(take_turns([(0, 1), (2, 3), (4, 5)], [0] * 6, {0: 6})) == 1
    assert len(take_turns([(0, 1), (2, 3), (4, 5)], [0] * 6, {0: 5})) == 2


@pytest.mark.parametrize("n", range(2, 8))
def test_every_rank_has_a_neighbour(n):
    links = neighbours(tuple(range(n)))
    assert {end for link in links for end in link} == set(range(n)) and len(links) == (n + 1) // 2


def test_witnesses_are_healthy_and_of_the_same_kind():
    links = {(a, b): None for a in range(6) for b in range(6) if a != b}
    hosts = [0, 0, 0, 1, 1, 1]
    chosen = with_witnesses(links, {(1, 0): None}, hosts)
    assert (0, 1) in chosen and len(chosen) == 5
    assert all(hosts[a] == hosts[b] for a, b in chosen)


@pytest.mark.parametrize(("capability", "said"), [("80", False), ("89", True), ("90", True), ("100", True)])
def test_what_no_load_computes_is_said_where_the_gpu_could(monkeypatch, capability, said):
    cupy = SimpleNamespace(cuda=SimpleNamespace(Device=lambda: SimpleNamespace(compute_capability=capability)))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    assert ("float8 products are not tested" in left_out("cuda")) is said
    assert left_out("cpu") == ""


@pytest.mark.parametrize(
    ("operations_per_s", "room", "side"),
    [(1e14, 8192, 8192), (2e13, 8192, 4096), (1e14, 4096, 2048), (1e12, 8192, 1024), (1e8, 8192, 512)],
)
def test_products_of_a_gpu_fit_into_their_time(monkeypatch, operations_per_s, room, side):
    clock = [0.0]

    def product(size, dtype, device):
        if size > room:
            raise Unavailable("no room")

        def multiply():
            clock[0] += 2 * size**3 / operations_per_s

        return multiply, None

    monkeypatch.setattr(gemm, "product", product)
    monkeypatch.setattr(gemm, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    assert gemm.fitting_sides(0.012, ("float16",)) == {"float16": side}
    # A look takes no longer than the first one, or some of the products that it allows.
    assert clock[0] < max(6 * 0.012, 4.1 * 512**3 / operations_per_s)
    assert gemm.fitting_sides(0.012).keys() == gemm.PRODUCTS["cuda"].keys()


def test_ranks_agree_on_the_products_of_their_gpus(monkeypatch):
    made = []

    def loads(device, which, sides):
        made.append(sides)
        return (gemm.Load("float32 product", lambda: None),)

    def fitting_sides(limit_s, which):
        import threading

        return {"float32": 1024 if threading.current_thread().name.endswith("1") else 4096}

    monkeypatch.setattr(gemm, "loads", loads)
    monkeypatch.setattr(gemm, "fitting_sides", fitting_sides)
    monkeypatch.setattr(gemm, "name_of_device", lambda device: "GPU")
    lanterne.spawn(2, lambda comm: validate(comm, device="cuda", thorough=False, sizes=(1 << 16,), repetitions=1))
    assert made == [{"float32": 1024}] * 2


def test_a_rehearsal_slows_what_a_gpu_takes_by_the_clock():
    load = gemm.Load("float32 product", lambda: time.sleep(2e-3))
    samples = gemm.sample(load, 0.0, slowdown=3.0, own_time=False)
    assert min(samples.wall_s) >= 6e-3
