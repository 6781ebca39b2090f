import argparse

import pytest

from lanterne.bench.output.units import (
    chosen,
    format_count,
    format_nbytes,
    format_time,
    integer,
    parse_nbytes,
    parse_rate_bytes_per_s,
    parse_time_s,
    whole,
)
from lanterne.errors import InputError


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0),
        ("1024", 1024),
        ("64K", 65536),
        ("64KiB", 65536),
        ("64kb", 64000),
        ("1.5M", 1572864),
        ("1GiB", 2**30),
        (" 2 GB ", 2 * 10**9),
    ],
)
def test_sizes(text, nbytes):
    assert parse_nbytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "x", "1X", "-1", "0.3", "1..2K", "K", "nan", "inf", "1e999", "1e300TB"])
def test_sizes_refused(text):
    with pytest.raises(InputError, match=r"expected (a size|at most)"):
        parse_nbytes(text)


@pytest.mark.parametrize(
    ("text", "time_s"), [("3us", 3e-6), ("50ms", 0.05), ("1.5s", 1.5), ("2min", 120.0), ("0", 0.0), ("1e-3s", 1e-3)]
)
def test_times(text, time_s):
    assert parse_time_s(text) == pytest.approx(time_s, rel=1e-12)


@pytest.mark.parametrize("text", ["", "ms", "3", "-1ms", "3 parsecs", "1e999", "1e10", "1e9min"])
def test_times_refused(text):
    with pytest.raises(InputError, match="expected a time"):
        parse_time_s(text)


@pytest.mark.parametrize(
    ("text", "rate"), [("200mbit", 25e6), ("1gbit/s", 125e6), ("450GB/s", 450e9), ("2GiB/s", 2 * 2**30)]
)
def test_rates(text, rate):
    assert parse_rate_bytes_per_s(text) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["", "0mbit", "200", "-3GB/s", "1e999bit", "1e308gbit"])
def test_rates_refused(text):
    with pytest.raises(InputError, match="expected a rate"):
        parse_rate_bytes_per_s(text)


def test_formats():
    assert [format_nbytes(n) for n in (0, 1023, 1024, 1536, 2**20)] == ["0 B", "1023 B", "1 KiB", "1.5 KiB", "1 MiB"]
    assert [format_time(t) for t in (None, 1.5, 0.0123, 3e-6, 2e-8)] == ["-", "1.5 s", "12.3 ms", "3 us", "20 ns"]
    # What rounds up to the next unit is one of it.
    assert [format_time(t) for t in (0.9994, 0.9996, 0.9996e-3)] == ["999 ms", "1 s", "1 ms"]
    assert [format_count(n, "call") for n in (0, 1, 2)] == ["0 calls", "1 call", "2 calls"]


@pytest.mark.parametrize(("text", "least", "number"), [("0", 0, 0), ("007", 1, 7), ("1" * 18, 1, int("1" * 18))])
def test_whole_numbers(text, least, number):
    assert whole(least)(text) == number


@pytest.mark.parametrize("text", ["", "3", "-4", "4.0", "٤", "²", "4 ", "1e3", "nan"])
def test_what_is_no_whole_number_of_at_least_four(text):
    with pytest.raises(argparse.ArgumentTypeError, match="expected a whole number of at least 4"):
        whole(4)(text)


@pytest.mark.parametrize("parse", [integer, whole(1)])
@pytest.mark.parametrize("text", ["1" * 19, "1" * 40, "1" * 5000])
def test_whole_numbers_that_are_no_count_of_anything(parse, text):
    with pytest.raises(argparse.ArgumentTypeError, match="expected a whole number of at most 18 digits"):
        parse(text)


def test_integers():
    assert [integer(text) for text in ("0", "-1", " 7 ", "1" * 18)] == [0, -1, 7, int("1" * 18)]
    with pytest.raises(ValueError):
        integer("1.5")


def test_chosen_names():
    assert chosen("b, a", "--x", {"a": 1, "b": 2}) == ("b", "a")


@pytest.mark.parametrize("text", ["", "a,", "c", "a,c"])
def test_names_that_are_not_known(text):
    with pytest.raises(InputError, match=r"--x: got '.?', expected some of a, b"):
        chosen(text, "--x", ("a", "b"))
