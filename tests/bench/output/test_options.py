import argparse

import pytest

from lanterne.bench.output.options import chosen, whole
from lanterne.errors import InputError


@pytest.mark.parametrize(("text", "least", "number"), [("0", 0, 0), ("007", 1, 7), ("1" * 30, 1, int("1" * 30))])
def test_whole_numbers(text, least, number):
    assert whole(least)(text) == number


@pytest.mark.parametrize("text", ["", "3", "-4", "4.0", "٤", "²", "4 ", "1e3", "nan"])
def test_what_is_no_whole_number_of_at_least_four(text):
    with pytest.raises(argparse.ArgumentTypeError, match="expected a whole number of at least 4"):
        whole(4)(text)


def test_chosen_names():
    assert chosen("b, a", "--x", {"a": 1, "b": 2}) == ("b", "a")


@pytest.mark.parametrize("text", ["", "a,", "c", "a,c"])
def test_names_that_are_not_known(text):
    with pytest.raises(InputError, match=r"--x: got '.?', expected some of a, b"):
        chosen(text, "--x", ("a", "b"))
