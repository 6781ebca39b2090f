"""Thresholds of a file that changes while a job is watched."""

import itertools
import os

import pytest

from lanterne.errors import InputError
from lanterne.failslow.operate.thresholds import ThresholdFile, Thresholds, read_thresholds

USUAL = Thresholds(patience_s=7.0)


WRITTEN = itertools.count(1)


def write(path, text):
    path.write_text(text)
    os.utime(path, ns=(next(WRITTEN) * 10**9,) * 2)


def test_it_follows_the_file(tmp_path, caplog):
    path = tmp_path / "t.json"
    write(path, "{}")
    file = ThresholdFile(path, USUAL)
    assert file.now == USUAL and file.look() is None
    write(path, '{"slow_ratio": 1.5}')
    assert file.look() == Thresholds(patience_s=7.0, slow_ratio=1.5) and file.look() is None
    write(path, '{"slow_ratio": 1.5, "patience": 3}')
    assert file.look() is None and file.look() is None
    assert caplog.text.count("did you mean") == 1 and file.now.slow_ratio == 1.5
    path.unlink()
    assert file.look() is None and file.look() is None
    assert caplog.text.count("No such file") == 1 and file.now.slow_ratio == 1.5
    write(path, '{"patience_s": 3}')
    assert file.look() == Thresholds(patience_s=3.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is no JSON"),
        ("[1]", "got list, expected an object"),
        ("[" * 100_000, "is no JSON"),
        ('{"patience": 1}', "did you mean 'patience_s'"),
        ('{"patience_s": -1}', "got -1, expected a positive number"),
        ('{"patience_s": true}', "got True, expected a positive number"),
        ('{"patience_s": "3"}', "got '3', expected a positive number"),
        ('{"slow_ratio": NaN}', "got nan, expected a positive number"),
        (f'{{"slow_ratio": 1{"0" * 400}}}', "expected a positive number"),
        ('{"slow_ratio": 1e999}', "got inf, expected a positive number"),
    ],
)
def test_what_is_none(text, words):
    with pytest.raises(InputError) as error:
        read_thresholds(text, USUAL, "t.json")
    assert str(error.value).startswith("t.json: ") and words in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_is_not_there_or_no_text(tmp_path):
    with pytest.raises(InputError, match="--thresholds: cannot read"):
        ThresholdFile(tmp_path / "none", USUAL)
    with pytest.raises(InputError, match="a folder, expected a file"):
        ThresholdFile(tmp_path, USUAL)
    (tmp_path / "t").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is no JSON"):
        ThresholdFile(tmp_path / "t", USUAL)
