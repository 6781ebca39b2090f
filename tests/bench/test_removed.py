"""Removed commands, options and variables are refused in one line that names what replaces them."""

import pytest

from lanterne.bench.cli import LANTERNE
from lanterne.errors import InputError
from lanterne.transport.job import bootstrap

REMOVED = [name for name, instead in LANTERNE.moved.items() if "./run evaluate" not in instead]


@pytest.mark.parametrize("removed", REMOVED)
def test_a_removed_word_names_its_replacement(capsys, removed):
    assert LANTERNE.main([*removed.split(), "1", "--", "true"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and LANTERNE.moved[removed] in said


def test_words_of_the_users_program_are_its_own():
    assert LANTERNE.main(["launch", "-n", "1", "--", "true", "--spares"]) == 0


@pytest.mark.parametrize("name", bootstrap.REMOVED)
def test_a_removed_variable_names_its_replacement(monkeypatch, name):
    monkeypatch.setenv(name, "1")
    with pytest.raises(InputError) as raised:
        bootstrap.connect(1.0)
    assert str(raised.value) == f"{name}: got '1', but it is no more; expected {bootstrap.REMOVED[name]}"
