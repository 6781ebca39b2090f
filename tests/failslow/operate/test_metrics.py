"""A status as metrics: an independent reader of Prometheus' format finds what was written."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from statuses import PROGRAM, ledger_of

from lanterne.failslow.operate.metrics import MAX_RANKS, Metric, exposition, job_metrics

LINE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (\S+)')
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\\n]|\\["\\n])*)"')


def parse(text):
    """({(name, labels): value}, {name: kind}) of the format, by its own grammar; every line must be of it."""
    samples, kinds, current = {}, {}, None
    assert text.endswith("\n")
    for line in text[:-1].split("\n"):
        if line.startswith("# "):
            word, name, rest = line[2:].split(" ", 2)
            if word == "TYPE":
                assert name not in kinds, f"a family twice: {name}"
                kinds[name], current = rest, name
            continue
        name, labels, value = LINE.fullmatch(line).groups()
        assert name == current, f"a sample outside of its family: {name}"
        unescape = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}
        pairs = ((k, re.sub(r'\\[n"\\]', lambda m, of=unescape: of[m[0]], v)) for k, v in LABEL.findall(labels or ""))
        key = name, tuple(sorted(pairs))
        assert key not in samples, f"a sample twice: {key}"
        samples[key] = float(value)
    return samples, kinds


@given(
    st.dictionaries(st.text(max_size=8), st.floats(), max_size=5),
    st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=20),
)
def test_what_is_written_is_read_again(values, text):
    metric = Metric("a_total", "counter", text + "\n\\", tuple(({"of": key}, v) for key, v in values.items()))
    samples, kinds = parse(exposition([metric]))
    assert kinds == {"a_total": "counter"} and len(samples) == len(values)
    for key, value in values.items():
        found = samples["a_total", (("of", key),)]
        assert found == value or (math.isnan(found) and math.isnan(value)), (key, value)


def value_of(samples, metric, **labels):
    (found,) = [v for (n, pairs), v in samples.items() if n == metric and labels.items() <= dict(pairs).items()]
    return found


def test_the_metrics_of_a_slow_job(tmp_path):
    status = ledger_of(tmp_path, begun_early=lambda: 17).status()
    samples, kinds = parse(exposition(job_metrics(status)))
    assert value_of(samples, "lanterne_job_info", program=" ".join(PROGRAM)) == 1
    assert value_of(samples, "lanterne_slow") == 1
    assert 2 < value_of(samples, "lanterne_slow_ratio") < 4
    assert value_of(samples, "lanterne_iterations_total") == status["iterations"]["count"]
    late = value_of(samples, "lanterne_rank_late_seconds", rank="3", host="h")
    assert late == pytest.approx(40e-3, rel=0.3) or late == pytest.approx(10e-3, rel=0.3)
    assert value_of(samples, "lanterne_rank_blamed", rank="3", kind="slow") == 1
    assert value_of(samples, "lanterne_incidents_open", kind="slow") == 1
    assert value_of(samples, "lanterne_incidents_open", kind="hang") == 0
    assert value_of(samples, "lanterne_calls_begun_early_total") == 17
    assert value_of(samples, "lanterne_host_pressure_ratio", host="h", resource="cpu") == 0.4
    assert value_of(samples, "lanterne_nic_errors_total", nic="eth0") == 3
    assert value_of(samples, "lanterne_gpu_throttled", gpu="0") == 1
    assert value_of(samples, "lanterne_threshold", name="patience_s") == 30
    # What nobody knows is absent, not 0.
    assert not any(name == "lanterne_saved_seconds" for name, _ in samples)
    assert all((name.endswith("_total")) == (kind == "counter") for name, kind in kinds.items())
    two = parse(exposition([*job_metrics(status), *job_metrics(status | {"run": "another"})]))[0]
    assert len(two) == 2 * len(samples)


def test_of_many_ranks_the_latest_are_told(tmp_path):
    status = ledger_of(tmp_path, 20).status()
    one = {"host": "h", "last": 1, "waited_s": 0.0}
    status["late"] = [one | {"rank": rank, "late_s": rank * 1e-3} for rank in range(MAX_RANKS + 100)]
    samples, _ = parse(exposition(job_metrics(status)))
    ranks = {int(dict(pairs)["rank"]) for name, pairs in samples if name == "lanterne_rank_late_seconds"}
    assert ranks == set(range(100, MAX_RANKS + 100))
