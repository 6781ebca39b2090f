"""What operators' parts cost: what is read is checked, and an empty answer is not right."""

import json

import pytest

from evaluation.operators import costs


def records(capsys, *parts):
    costs.main(["--only", *parts, "--rows", "2000", "--json", "-"])
    return {record["what"]: record["right"] for record in json.loads(capsys.readouterr().out)["results"]}


@pytest.mark.parametrize("shows", [True, False])
def test_every_rank_is_in_the_metrics(shows, monkeypatch, capsys):
    if not shows:
        whole = costs.large_status()
        monkeypatch.setattr(costs, "large_status", lambda: whole | {"late": [], "incidents": []})
    assert records(capsys, "scrape") == {"scrape, 1024 ranks": shows, "page, 1024 ranks": shows}


@pytest.mark.parametrize("slow", [costs.SLOW, 0])
def test_slow_spells_are_remembered(slow, monkeypatch, capsys):
    monkeypatch.setattr(costs, "SLOW", slow)
    assert set(records(capsys, "memory").values()) == {bool(slow)}


@pytest.mark.parametrize("names", [True, False])
def test_the_slow_rank_is_located(names, monkeypatch, capsys):
    if not names:
        monkeypatch.setattr(costs, "MEASURED", """print('{"verdicts": []}', "PEAK 1")""")
    found = records(capsys, "locate")
    assert len(found) == 3 and set(found.values()) == {names}
