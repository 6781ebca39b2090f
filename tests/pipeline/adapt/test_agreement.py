"""One rank finds out, all know: values, and errors too."""

import pytest

import lanterne
from lanterne.errors import InputError, LanterneError
from lanterne.pipeline.adapt.agreement import from_first


def test_all_get_what_the_first_made():
    def job(comm):
        return from_first(comm, lambda: {"rank": comm.rank, "list": [1, 2.5, None]})

    assert lanterne.spawn(3, job) == [{"rank": 0, "list": [1, 2.5, None]}] * 3


@pytest.mark.parametrize("kind", [InputError, LanterneError])
def test_all_raise_what_the_first_raised(kind):
    def fail():
        raise kind("no such thing")

    def job(comm):
        with pytest.raises(kind, match="no such thing"):
            from_first(comm, fail)
        return from_first(comm, lambda: 5)

    assert lanterne.spawn(3, job) == [5, 5, 5]
