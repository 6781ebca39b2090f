"""Values of options that several commands take: whole numbers, and lists of names."""

import argparse

from lanterne.errors import InputError


def whole(least):
    """For argparse: a function that turns text into an int of at least `least`."""

    def parse(text):
        if not (text.isascii() and text.isdecimal() and int(text) >= least):
            raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number of at least {least}")
        return int(text)

    return parse


def chosen(text, option, known):
    """The names in a list such as "mpi,ucx", each one of `known`; a tuple.

    Raises:
        InputError: another name, or none.
    """
    found = tuple(name.strip() for name in text.split(","))
    for name in found:
        if name not in known:
            raise InputError(f"{option}: got {name!r}, expected some of {', '.join(known)}")
    return found
