"""What the tests of a Communicator call, and what comes of it on every rank."""

import numpy as np

import lanterne
from lanterne.errors import LanterneError


def outcome(comm, function):
    """What `function(comm)` returns or raises."""
    try:
        return function(comm)
    except LanterneError as error:
        return error


def outcomes(n, function, timeout_s=20.0):
    return lanterne.spawn(n, outcome, function, timeout_s=timeout_s)


def sum_of_ranks(comm):
    out = np.empty(3)
    comm.all_reduce(np.full(3, float(comm.rank)), out)
    return out.tolist()


def frozen(array):
    array.flags.writeable = False
    return array
