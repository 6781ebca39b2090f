"""Transports around others: what has come is taken in by the inner one, whose requests theirs may be."""

from types import SimpleNamespace

import pytest

from lanterne.transport.nccl.over_nccl import NcclTransport
from lanterne.transport.wrapper import Wrapper


@pytest.mark.parametrize(("cls", "inside"), [(Wrapper, "inner"), (NcclTransport, "host")])
def test_what_has_come_is_taken_in_inside(cls, inside):
    calls = []
    inner = SimpleNamespace(take_in=lambda: calls.append("taken in"))
    cls.take_in(SimpleNamespace(**{inside: inner}))
    assert calls == ["taken in"]
