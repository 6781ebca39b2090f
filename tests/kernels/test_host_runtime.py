"""The stand-ins have the verbs of what they stand for, with the same parameters: they take what it takes, no more."""

import inspect

import pytest
from host_nccl import HostCommunicator, HostNccl
from host_runtime import HostRuntime

from lanterne.kernels.cuda.runtime import CudaRuntime

VERBS = [name for name in vars(CudaRuntime) if not name.startswith("_")]
# What transport/nccl/channel.py calls of a communicator, by the parameters that CuPy 13 and 14 give them.
COMMUNICATOR = {
    "send": ("address", "count", "datatype", "peer", "stream"),
    "recv": ("address", "count", "datatype", "peer", "stream"),
    "allReduce": ("source", "target", "count", "datatype", "op", "stream"),
    "check_async_error": (),
    "abort": (),
    "destroy": (),
}


@pytest.mark.parametrize("verb", VERBS)
def test_verbs_of_the_runtime(verb):
    real, ours = vars(CudaRuntime)[verb], getattr(HostRuntime(), verb)
    if isinstance(real, property):
        assert isinstance(ours, str)
        return
    expected = list(inspect.signature(real).parameters.values())[1:]
    found = list(inspect.signature(ours).parameters.values())
    assert [(p.name, p.default) for p in found] == [(p.name, p.default) for p in expected]


@pytest.mark.parametrize("verb", COMMUNICATOR)
def test_verbs_of_a_communicator(verb):
    assert tuple(inspect.signature(getattr(HostCommunicator, verb)).parameters)[1:] == COMMUNICATOR[verb]


def test_verbs_of_the_library():
    library = HostNccl()
    for verb in ("get_version", "get_unique_id", "groupStart", "groupEnd"):
        assert not inspect.signature(getattr(library, verb)).parameters, verb
    assert type(library.get_unique_id()) is bytes and len(library.get_unique_id()) == 128
