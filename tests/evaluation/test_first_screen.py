"""The score of the first command: which runs are wrong, and when the exit code says so."""

import pytest

from evaluation import first_screen

GAINS = {"failed": "", "said": "auto gains", "ratio": 0.71, "foreign_cores": 0.1, "lasted_s": 40.0}


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({}, False),
        ({"said": "busy", "ratio": 2.0, "foreign_cores": 1.4}, False),
        ({"ratio": 0.76}, True),
        ({"said": "auto gains nothing here", "ratio": 0.97}, True),
        ({"foreign_cores": 1.0}, True),
        ({"failed": "it ended"}, True),
    ],
)
def test_a_verdict_is_right_or_none(change, wrong):
    assert first_screen.is_wrong(GAINS | change) == wrong


@pytest.mark.parametrize(
    ("options", "silent", "code"), [([], 1, 0), ([], 2, 1), (["--busy", "1"], 20, 0), (["--runs", "3"], 1, 1)]
)
def test_nineteen_of_twenty_quiet_runs_give_one(monkeypatch, capsys, options, silent, code):
    def run(number):
        return GAINS | ({"said": "busy", "foreign_cores": 1.0} if number < silent else {}) | {"run": number}

    monkeypatch.setattr(first_screen, "run", run)
    assert first_screen.main(options) == code
    runs = 3 if "--runs" in options else 20
    assert capsys.readouterr().out.splitlines()[-1].split()[:3] == [str(runs), str(runs - silent), "0"]


def test_what_a_run_says_is_read_from_its_first_table():
    text = "# auto: a note\n\n# auto gains: 0.71 of ring's time, the median of 6 rounds\n\n# busy: others used 1 core"
    assert first_screen.SAID.search(text)[1] == "auto gains"
    assert first_screen.SAID.search(text.replace("gains:", "gains nothing here:"))[1] == "auto gains nothing here"
