"""Verdicts of a validation from made-up measurements: what is blamed, with which ratio, and what is not."""

import pytest

from lanterne.failslow.validate.judge import (
    contended,
    core_time_s,
    findings,
    judge_links,
    judge_ranks,
    reference,
)
from lanterne.failslow.validate.link_probe import LinkSamples
from lanterne.failslow.validate.links import link_passes
from lanterne.failslow.validate.loads import Samples

SIZES = (1 << 20, 2 << 20, 4 << 20)
NAN = float("nan")


def computing(own_s, clock_s=None, load="float32 product"):
    """One measurement, {(rank, load): Samples}, of three equal repetitions."""
    clock_s = clock_s or own_s
    return {(r, load): Samples((w,) * 3, (c,) * 3) for r, (c, w) in enumerate(zip(own_s, clock_s, strict=True))}


def transfers(n, slow=(), factor=1.0, latency_s=0.0, noise=lambda link, repetition: 1.0):
    """Samples of every tested link of n ranks at 1 GB/s; those in `slow` take `factor` times as long, or later."""
    found = {}
    for a, b in (link for batch in link_passes(range(n)) for link in batch):
        for link in ((a, b), (b, a)):
            k = factor if link in slow else 1.0
            times_s = {size: tuple(k * size / 1e9 * noise(link, i) for i in range(3)) for size in SIZES}
            waits_s = dict.fromkeys(SIZES, (0.0,) * 3)
            found[link] = LinkSamples(10e-6 + (latency_s if link in slow else 0.0), times_s, waits_s)
    return found


def slow_ranks(*measured, **more):
    return judge_ranks(*measured, **more)[0]


def slow_links(*measured, **more):
    return judge_links(*measured, **more)[0]


def unknown_links(*measured, **more):
    return judge_links(*measured, **more)[1]


ONE_MACHINE = [(0, 3)] * 4


@pytest.mark.parametrize("slow", range(4))
def test_a_slow_core_is_named_by_its_own_time(slow):
    own_s = [3e-3 if rank == slow else 2e-3 for rank in range(4)]
    found = slow_ranks([computing(own_s)], [7] * 4, ONE_MACHINE)
    assert list(found) == [slow]
    assert found[slow].ratio == pytest.approx(1.5)
    assert "core is slow" in found[slow].text


@pytest.mark.parametrize("starved", [False, True])
def test_a_slow_gpu_is_named_by_the_clock_since_a_thread_has_no_time_of_it(starved):
    samples = computing([NAN] * 4, [2e-3, 2e-3, 5e-3, 2e-3])
    assert list(slow_ranks([samples], ["GPU"] * 4, ONE_MACHINE, starved=starved)) == [2]
    assert slow_ranks([computing([NAN] * 4, [2e-3] * 4)], ["GPU"] * 4, ONE_MACHINE, starved=starved) == {}


def test_who_shares_cores_is_not_blamed_for_waiting():
    found = slow_ranks([computing([2e-3] * 4, [2e-3, 9e-3, 2e-3, 4e-3])], [7] * 4, ONE_MACHINE)
    assert found == {}


def test_a_pinned_rank_whose_core_somebody_else_uses():
    cores = [(0, 1 << rank) for rank in range(4)]
    samples = computing([2e-3] * 4, [2e-3, 2e-3, 4e-3, 2e-3])
    assert list(found := slow_ranks([samples], [7] * 4, cores)) == [2]
    assert "never had its core to itself" in found[2].text
    # Once it was left alone: its core is as good as the others'.
    samples[2, "float32 product"] = Samples((4e-3, 4e-3, 2e-3), (2e-3,) * 3)
    found = slow_ranks([samples], [7] * 4, cores)
    assert "something else runs" in found[2].text
    assert [(one.kind, one.ranks) for one in findings(found, {}, (), "alone")] == [("contention", (2,))]


def test_ranks_whose_cores_other_work_uses_are_told_together():
    cores = [(0, 1), (0, 2), (0, 3), (0, 3)]
    busy = computing([2e-3] * 4, [2e-3, 2.2e-3, 6e-3, 10e-3])
    (finding,) = contended(busy, cores)
    assert (finding.kind, finding.ranks, finding.ratio) == ("contention", (2, 3), pytest.approx(4.0))
    assert "25% of the time" in finding.evidence
    assert contended(computing([2e-3] * 4), cores) == ()


def test_other_devices_are_no_peers():
    own_s = [2e-3, 2e-3, 5e-3, 5e-3]
    assert slow_ranks([computing(own_s)], [1, 1, 2, 2], ONE_MACHINE) == {}
    assert list(slow_ranks([computing(own_s[:3])], [1, 1, 2], ONE_MACHINE)) == []
    assert sorted(slow_ranks([computing(own_s)], [1] * 4, ONE_MACHINE)) == [2, 3]


def test_a_gpu_is_judged_by_the_clock():
    samples = {(r, "float16 product"): Samples((t,) * 3, (NAN,) * 3) for r, t in enumerate([1e-3, 1e-3, 1.3e-3])}
    found = slow_ranks([samples], [7] * 3, ONE_MACHINE[:3])
    assert list(found) == [2]
    assert found[2].text == "float16 product takes 1.30 times as long as on its peers"


def test_interrupted_repetitions_do_not_count():
    assert core_time_s(Samples((9e-3, 2e-3, 8e-3), (3e-3, 2e-3, 1e-3))) == 2e-3
    assert core_time_s(Samples((9e-3,), (3e-3,))) is None
    assert core_time_s(Samples((9e-3,), (3e-3,)), starved=True) == 3e-3
    # Rank 1 was never left alone: nothing is known of it.
    assert slow_ranks([computing([2e-3, 4e-3, 2e-3], [2e-3, 9e-3, 2e-3])], [7] * 3, ONE_MACHINE[:3]) == {}


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 16])
def test_a_slow_direction_is_named(n):
    found = slow_links(transfers(n, {(0, 1)}, 2.0), [0] * n)
    assert list(found) == [(0, 1)]
    assert found[0, 1].ratio == pytest.approx(2.0)


@pytest.mark.parametrize("n", [3, 4, 5, 8, 16])
def test_a_slow_network_card_is_a_rank(n):
    tested = transfers(n)
    samples = transfers(n, {link for link in tested if 2 in link}, 4.0)
    slow = slow_links(samples, range(n))
    (finding,) = findings({}, slow, samples, "alone")
    assert (finding.kind, finding.ranks) == ("links", (2,))
    assert finding.ratio == pytest.approx(4.0)


def test_latency_is_evidence_of_its_own():
    found = slow_links(transfers(8, {(0, 1), (1, 0)}, latency_s=20e-3), [0] * 8)
    assert sorted(found) == [(0, 1), (1, 0)]
    assert "latency" in found[0, 1].text
    assert slow_links(transfers(8, {(0, 1)}, latency_s=100e-6), [0] * 8) == {}
    assert slow_links(transfers(8, {(0, 1)}, latency_s=2e-3), [0] * 8, crowded=True) == {}


def test_links_between_hosts_are_not_slow_beside_those_within():
    hosts = [0, 0, 0, 0, 1, 1, 1, 1]
    between = {(a, b) for a, b in transfers(8) if hosts[a] != hosts[b]}
    assert slow_links(transfers(8, between, 10.0), hosts) == {}


def test_one_slow_repetition_is_not_enough():
    noise = lambda link, repetition: 5.0 if repetition == sum(link) % 3 else 1.0  # noqa: E731
    assert slow_links(transfers(8, noise=noise), [0] * 8) == {}


def test_what_scheduling_explains_is_not_blamed():
    never = {1 << 18: (0.0,) * 3}
    fast = {link: LinkSamples(s.latency_s, {1 << 18: (50e-6,) * 3}, never) for link, s in transfers(8).items()}
    fast[0, 1] = LinkSamples(10e-6, {1 << 18: (120e-6,) * 3}, never)
    assert slow_links(fast, [0] * 8) == {}
    fast[0, 1] = LinkSamples(10e-6, {1 << 18: (900e-6,) * 3}, never)
    assert list(slow_links(fast, [0] * 8)) == [(0, 1)]
    assert slow_links(fast, [0] * 8, crowded=True) == {}


def test_findings_leave_nothing_out_and_name_nothing_twice():
    samples = transfers(6, {(0, 1), (4, 5)}, 3.0)
    found = findings({}, slow_links(samples, [0] * 6), samples, "together")
    assert [finding.links for finding in found] == [((0, 1),), ((4, 5),)]
    assert {finding.when for finding in found} == {"together"}


def test_a_link_whose_ends_waited_for_their_cores_is_not_blamed():
    samples = transfers(4, {(0, 1)}, 5.0)
    waits_s = {size: (3.5 * size / 1e9,) * 3 for size in SIZES}
    samples[0, 1] = samples[0, 1]._replace(waits_s=waits_s)
    assert slow_links(samples, [0] * 4, 2.0) == {}
    assert "waited for their cores" in unknown_links(samples, [0] * 4, 2.0)[0, 1].text
    # It would be slow without them, too.
    samples[0, 1] = samples[0, 1]._replace(waits_s={size: (2 * size / 1e9,) * 3 for size in SIZES})
    assert list(slow_links(samples, [0] * 4, 2.0)) == [(0, 1)]
    assert unknown_links(samples, [0] * 4, 2.0) == {}


def test_a_latency_that_no_healthy_link_has_is_clear():
    noisy = transfers(4, {(0, 1)}, latency_s=5e-3, noise=lambda link, repetition: 1.0 + 3 * repetition)
    assert slow_links(noisy, [0] * 4, crowded=True)[0, 1].is_clear


def test_reference_of_few_and_many():
    assert reference([1.0, 9.0]) == 1.0
    assert reference([1, 1, 1, 9, 9, 9]) == 1
    assert reference(range(100)) == 49
