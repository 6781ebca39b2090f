"""What `lanterne info` says of parts that are there, broken, or do not answer."""

import sys

import pytest

from lanterne.bench import info


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print('here 1.0')", (True, "here 1.0")),
        ("raise ImportError('libucp.so.0')", (False, "ImportError: libucp.so.0")),
        ("print('has failed'); print('see the manual'); exit(9)", (False, "has failed")),
        ("exit(5)", (False, "ended with exit code 5")),
        ("import time; time.sleep(60)", (False, "no answer within 0.5 s")),
    ],
)
def test_a_part_that_is_broken_or_hangs_is_told(monkeypatch, code, expected):
    monkeypatch.setattr(info, "ANSWER_S", 0.5 if "sleep" in code else 60)
    assert info._ask([sys.executable, "-c", code]) == expected
