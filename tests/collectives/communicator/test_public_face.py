"""What a user sees of lanterne: exactly these names, every option spelled out, every type said."""

import inspect

import numpy as np
import pytest

import lanterne
from lanterne import Communicator
from lanterne.collectives import verbs
from lanterne.collectives.bound import Bound
from lanterne.collectives.captured import Captured
from lanterne.collectives.communicator import core_of
from lanterne.collectives.execute.requests import CallRequest, CollectiveRequest, MessageRequest
from lanterne.collectives.late.arrivals import Arrivals
from lanterne.collectives.late.calls import LateRequest
from lanterne.collectives.mailbox import Mailbox, MailRequest

COLLECTIVES = (
    *("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all"),
    *("gather", "scatter", "scan", "exscan"),
)
OPTIONS = {"algorithm", "dtype", "num_chunks", "segment_nbytes", "credits"}
MORE_OPTIONS = {
    "all_reduce": {"late_rank", "joined"},
    "all_to_all": {"in_counts", "out_counts"},
    **{key: {"counts"} for key in ("reduce_scatter", "all_gather", "gather", "scatter")},
}
ATTRIBUTES = {"rank", "world_size", "ranks", "hosts", "transport", "communicator_id"}
ATTRIBUTES |= {"timeout_s", "tuning", "deterministic", "epoch", "newcomers"}
METHODS = {
    *COLLECTIVES,
    *(f"start_{name}" for name in COLLECTIVES),
    *("barrier", "start_barrier", "algorithms", "bind", "capture", "arrivals"),
    *("send", "start_send", "recv", "start_recv", "send_recv", "mailbox"),
    *("split", "group", "agree", "shrink", "grow", "revoke", "abort", "failure", "close"),
}
NAMES = {
    Captured: {"asks", "launch", "close"},
    Bound: {"start"},
    Mailbox: {"send", "start_send", "recv", "start_recv", "probe"},
    MailRequest: {"test", "wait", "then", "done", "received"},
    Arrivals: {"calls", "begun_early", "last", "ranks", "delays_s", "arrivals_s", "late_rank", "to_json", "from_json"},
} | {kind: {"test", "wait", "then", "done"} for kind in (CollectiveRequest, CallRequest, LateRequest, MessageRequest)}


def public(names):
    return {name for name in names if not name.startswith("_")}


def functions():
    """(name, function) of what users call, constructors too."""
    for name in lanterne.__all__:
        found = getattr(lanterne, name)
        if inspect.isfunction(found):
            yield name, found
    for kind in (Communicator, *NAMES):
        for name, found in inspect.getmembers(kind, inspect.isroutine):
            if not name.startswith("_") and not hasattr(tuple, name):
                yield f"{kind.__name__}.{name}", found
    yield "Communicator.__init__", Communicator.__init__


FUNCTIONS = dict(functions())


def test_a_communicator_has_what_users_call_and_nothing_else():
    comm = lanterne.spawn(1, lambda comm: comm)[0]
    assert public(dir(comm)) == METHODS | ATTRIBUTES
    assert public(dir(Communicator)) == METHODS | {"timeout_s", "deterministic"}


@pytest.mark.parametrize("kind", NAMES, ids=lambda kind: kind.__name__)
def test_what_methods_return_has_what_users_call_and_nothing_else(kind):
    assert public(dir(kind)) - set(dir(tuple)) == NAMES[kind]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_option_is_spelled_out_and_every_type_is_said(name):
    signature = inspect.signature(FUNCTIONS[name])
    parameters = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    # Keywords are those of a TypedDict, which checkers and editors show.
    assert all("Unpack[" in str(each.annotation) for each in parameters if each.kind is each.VAR_KEYWORD)
    assert not [each.name for each in parameters if each.annotation is each.empty]
    assert signature.return_annotation is not signature.empty
    assert inspect.getdoc(FUNCTIONS[name]) or name.endswith("__init__")


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_options_are_those_of_every_collective_and_only_named(collective):
    blocking, started = (inspect.signature(getattr(Communicator, name)) for name in (collective, f"start_{collective}"))
    named = {name for name, each in blocking.parameters.items() if each.kind is each.KEYWORD_ONLY}
    assert named == {"timeout_s"} and blocking.parameters.keys() - started.parameters.keys() == named
    keywords = str(blocking.parameters["options"].annotation)
    assert keywords == str(started.parameters["options"].annotation)
    options = getattr(verbs, keywords.removeprefix("Unpack[").removesuffix("]"))
    assert set(options.__annotations__) == OPTIONS | MORE_OPTIONS.get(collective, set())


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_an_option_of_another_collective_is_no_keyword(collective):
    def run(comm):
        others = {name for names in MORE_OPTIONS.values() for name in names} - MORE_OPTIONS.get(collective, set())
        x, y = np.ones(1), np.ones(1)
        arrays = (x,) if collective == "broadcast" else (x, y)
        for name in ["algoritm", *others]:
            for method in (getattr(comm, collective), getattr(comm, f"start_{collective}")):
                with pytest.raises(TypeError, match=rf"{collective}\(\) got an unexpected keyword argument '{name}'"):
                    method(*arrays, **{name: None})

    lanterne.spawn(1, run)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_arguments_by_place_are_in_the_order_of_cupyx(collective):
    blocking, started = (inspect.signature(getattr(Communicator, name)) for name in (collective, f"start_{collective}"))
    named = {"timeout_s"}
    # One after the other, as in cupyx.distributed.
    assert [name for name in started.parameters if name not in named] == [
        name for name in blocking.parameters if name not in named
    ]


def test_what_is_set_on_the_face_is_set_behind_it():
    def run(comm):
        group = comm.split(0)
        comm.timeout_s, comm.deterministic = 3.0, True
        again = comm.split(0)
        return [(core_of(each).timeout_s, each.timeout_s, each.deterministic) for each in (comm, group, again)]

    assert lanterne.spawn(2, run, timeout_s=20.0) == [[(3.0, 3.0, True), (20.0, 20.0, False), (3.0, 3.0, True)]] * 2
