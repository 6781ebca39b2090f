"""What a user of a Communicator sees: results, order, groups, messages. What goes wrong: test_communicator_errors."""

import gc
import sys
import threading
import time
import weakref

import numpy as np
import pytest
from outcomes import frozen, outcome, sum_of_ranks

import lanterne
from lanterne.collectives.communicator import core_of
from lanterne.collectives.execute import plans
from lanterne.collectives.execute.requests import MessageRequest
from lanterne.errors import InputError, PeerFailed, TransportError, TransportTimeout

# -- jobs


def test_one_process_is_a_job_of_one_rank():
    with lanterne.init() as comm:
        assert (comm.rank, comm.world_size) == (0, 1)
        out = np.empty(4)
        comm.all_reduce(np.arange(4.0), out, "mean")
        assert out.tolist() == [0, 1, 2, 3]
        comm.barrier()
    comm.close()
    with pytest.raises(TransportError, match="closed"):
        comm.all_reduce(out, out)


def test_spawn_returns_the_results_by_rank():
    assert lanterne.spawn(3, lambda comm, factor: comm.rank * factor, 10) == [0, 10, 20]


def test_init_inside_spawn_is_the_threads_communicator():
    assert lanterne.spawn(2, lambda comm: lanterne.init() is comm and lanterne.init("local") is comm) == [True, True]
    with pytest.raises(InputError, match="inside spawn"):
        lanterne.spawn(1, lambda comm: lanterne.init("mpi"))


def test_spawn_raises_the_first_error_with_its_rank():
    seen = {}

    def fails(comm):
        if comm.rank == 2:
            raise ValueError("lost the plot")
        try:
            comm.barrier()
        except PeerFailed as error:
            seen[comm.rank] = error
            raise

    with pytest.raises(ValueError, match="lost the plot") as caught:
        lanterne.spawn(4, fails)
    assert caught.value.__notes__ == ["raised on rank 2 of 4"]
    assert {rank: error.rank for rank, error in seen.items()} == {0: 2, 1: 2, 3: 2}
    assert all("ValueError: lost the plot" in str(error) for error in seen.values())


@pytest.mark.parametrize("n", [0, -1])
def test_spawn_refuses_no_ranks(n):
    with pytest.raises(InputError, match=f"got {n} ranks"):
        lanterne.spawn(n, sum_of_ranks)


def test_init_refuses_an_unknown_transport():
    with pytest.raises(InputError, match="got 'carrier-pigeon', expected one of local, mpi, ucx"):
        lanterne.init("carrier-pigeon")


# -- order


def test_started_calls_keep_their_order():
    def run(comm):
        outs = [np.empty(2) for _ in range(6)]
        started = [comm.start_all_reduce(np.full(2, float(i)), out) for i, out in enumerate(outs)]
        for request in reversed(started) if comm.rank % 2 else started:
            request.wait()
        return [out[0] for out in outs]

    assert lanterne.spawn(3, run) == [[0, 3, 6, 9, 12, 15]] * 3


@pytest.mark.parametrize(
    "collective", ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all"]
)
def test_a_started_call_gives_what_the_call_gives(collective):
    n, root = 3, 1
    sizes = {"reduce_scatter": (4 * n, 4), "all_gather": (4, 4 * n), "all_to_all": (4 * n, 4 * n)}
    size_in, size_out = sizes.get(collective, (4, 4))
    options = {"root": root} if collective in ("broadcast", "reduce") else {}

    def run(comm):
        outs = []
        for name in (collective, f"start_{collective}"):
            source, out = np.arange(1.0, size_in + 1) * (comm.rank + 1), np.zeros(size_out)
            arrays = (source,) if collective == "broadcast" else (source, out)
            request = getattr(comm, name)(*arrays, **options)
            if name != collective:
                request.wait()
            outs.append(arrays[-1])
        return outs

    for rank, (called, started) in enumerate(lanterne.spawn(n, run)):
        np.testing.assert_array_equal(started, called, err_msg=f"rank {rank}")
        assert started.any() == (collective != "reduce" or rank == root), (rank, called, started)


def test_a_chain_of_started_calls_sees_the_results_before_it():
    def run(comm):
        array = np.ones(5)
        for _ in range(3):
            last = comm.start_all_reduce(array, array)
        last.wait()
        return array[0]

    assert lanterne.spawn(2, run) == [8.0, 8.0]


def test_tests_make_progress():
    def run(comm):
        out = np.empty(1)
        request = comm.start_all_reduce(np.ones(1), out)
        while not request.test():
            time.sleep(0)
        assert request.test()
        request.wait()
        return out[0]

    assert lanterne.spawn(2, run) == [2.0, 2.0]


def test_a_first_call_does_not_block_where_it_is_started():
    """A signature is agreed upon while waiting: rank 0 starts a call, then sends what rank 1 needs before its own."""

    def run(comm):
        out = np.empty(1)
        if comm.rank == 0:
            request = comm.start_all_reduce(np.ones(1), out)
            comm.send(np.full(1, 5.0), 1)
            request.wait()
        else:
            got = np.empty(1)
            comm.recv(got, 0)
            comm.all_reduce(got, out)
        return out[0]

    assert lanterne.spawn(2, run, timeout_s=20.0) == [6.0, 6.0]


def test_more_signatures_than_the_cache_holds(monkeypatch):
    monkeypatch.setattr(plans, "PLAN_LANES", range(64, 67))

    def run(comm):
        for count in (1, 2, 3, 4, 5, 1, 3, 5, 2, 5, 4):
            out = np.empty(count)
            comm.all_reduce(np.arange(float(count)), out)
            np.testing.assert_array_equal(out, 2 * np.arange(float(count)), err_msg=f"{count} elements")

    lanterne.spawn(2, run, timeout_s=20.0)


def test_arrays_are_let_go_after_the_call():
    def run(comm):
        array, out = np.ones(1000), np.empty(1000)
        comm.all_reduce(array, out)
        alive = [weakref.ref(array), weakref.ref(out)]
        del array, out
        gc.collect()
        return [ref() for ref in alive]

    assert lanterne.spawn(2, run) == [[None, None]] * 2


# -- messages


def test_messages_by_peer_and_tag():
    def run(comm):
        left, right = (comm.rank - 1) % 3, (comm.rank + 1) % 3
        first, second = np.empty(1, np.int64), np.empty(2, np.int64)
        requests = [comm.start_recv(second, left, tag=1), comm.start_recv(first, left)]
        comm.start_send(np.array([comm.rank]), right)
        comm.start_send(np.array([comm.rank, comm.rank]), right, tag=1)
        for request in requests:
            request.wait()
        return [first.tolist(), second.tolist()]

    assert lanterne.spawn(3, run) == [[[2], [2, 2]], [[0], [0, 0]], [[1], [1, 1]]]


def test_a_message_holds_its_array_though_its_request_is_dropped():
    def run(comm):
        if comm.rank == 0:
            for i in range(20):
                comm.start_send(np.full(5000, float(i)), 1)
            gc.collect()
            comm.barrier()
            return None
        comm.barrier()
        out = np.empty(5000)
        return [comm.recv(out, 0) or set(out.tolist()) for _ in range(20)]

    assert lanterne.spawn(2, run, timeout_s=20.0)[1] == [{float(i)} for i in range(20)]


def test_prepared_messages_start_again_and_again():
    def run(comm):
        array, peer = np.empty(2), 1 - comm.rank
        start = (core_of(comm).prepare_recv if comm.rank else core_of(comm).prepare_send)(array, peer, tag=3)
        got = []
        for value in range(4):
            if comm.rank == 0:
                array[:] = value
            start().wait()
            got.append(array.tolist())
        comm.barrier()
        comm.close()
        return got, outcome(comm, lambda comm: start())

    for got, error in lanterne.spawn(2, run):
        assert got == [[value, value] for value in range(4)], (got, error)
        assert isinstance(error, TransportError), (got, error)


def test_a_receive_into_read_only_memory():
    with pytest.raises(InputError, match="read-only"):
        lanterne.spawn(2, lambda comm: comm.recv(frozen(np.zeros(1)), 1 - comm.rank))


@pytest.mark.parametrize(("code", "heard"), [(0, None), (3, PeerFailed)])
def test_only_an_exit_code_of_0_is_no_failure(code, heard):
    seen = []

    def run(comm):
        comm.barrier()
        if comm.rank == 0:
            sys.exit(code)
        seen.append(outcome(comm, lambda comm: core_of(comm).control.listen(0.5)))

    with pytest.raises(SystemExit):
        lanterne.spawn(2, run)
    assert seen == [None] if heard is None else isinstance(seen[0], heard)


def test_send_recv_exchanges():
    def run(comm):
        got = np.empty(3)
        comm.send_recv(np.full(3, float(comm.rank)), got, 1 - comm.rank)
        return got[0]

    assert lanterne.spawn(2, run) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("peer", "tag", "text"),
    [(2, 0, "peer: got 2"), (-1, 0, "peer: got -1"), ("a", 0, "peer: got 'a'"), (1, 2**31, "expected 0 to 2147483647")],
)
def test_messages_refused(peer, tag, text):
    with pytest.raises(InputError, match=text):
        lanterne.spawn(2, lambda comm: comm.send(np.zeros(1), peer, tag=tag))


def test_a_receive_that_nobody_answers():
    done = threading.Event()

    def run(comm):
        if comm.rank == 1:
            done.wait(30)
            return
        try:
            comm.recv(np.empty(1), 1, timeout_s=0.2)
        finally:
            done.set()

    with pytest.raises(TransportTimeout, match=r"rank 1 within 0\.2 s"):
        lanterne.spawn(2, run)


# -- groups


def test_nothing_is_kept_of_communicators_that_were_closed():
    def job(comm):
        def kept():
            return len(comm.transport.kept)

        for _ in range(20):
            comm.split(0).close()
        closed = kept()
        comm.transport.kept.append(comm)
        return closed, kept()

    assert lanterne.spawn(2, job) == [(0, 1), (0, 1)]


def test_an_id_is_used_again_only_when_there_is_no_other():
    """What a rank that waited long has told on a closed communicator must not be read on the next."""

    def job(comm):
        ids = []
        for _ in range(3):
            with comm.split(0) as group:
                ids.append(group.communicator_id)
        core_of(comm).ids.used[4:-1] = bytes([2]) * ((1 << 16) - 5)
        ids += [comm.split(0).communicator_id for _ in range(3)]
        with pytest.raises(InputError, match="got no free communicator id, expected fewer than 65535 open"):
            comm.split(0)
        return ids

    assert lanterne.spawn(2, job) == [[1, 2, 3, 1, 2, 3]] * 2


def test_split_orders_by_key_and_leaves_out_negative_colors():
    def run(comm):
        group = comm.split(comm.rank % 2 if comm.rank < 4 else -1, key=-comm.rank)
        if group is None:
            return None
        members = np.empty(group.world_size, np.int64)
        group.all_gather(np.array([comm.rank]), members)
        return group.rank, members.tolist(), group.communicator_id

    assert lanterne.spawn(5, run) == [(1, [2, 0], 1), (1, [3, 1], 1), (0, [2, 0], 1), (0, [3, 1], 1), None]


def test_groups_of_groups_and_closed_ids():
    def run(comm):
        row = comm.split(comm.rank // 2)
        single = row.split(row.rank)
        column = comm.split(comm.rank % 2)
        ids = [row.communicator_id, single.communicator_id, column.communicator_id]
        row.close()
        comm.barrier()
        again = comm.split(0)
        out, grand = np.empty(1), np.empty(1)
        column.all_reduce(np.full(1, float(comm.rank)), out)
        again.all_reduce(out, grand)
        return ids, again.communicator_id, out[0], grand[0], single.world_size

    assert lanterne.spawn(4, run) == [([1, 2, 3], 4, total, 12.0, 1) for total in (2.0, 4.0, 2.0, 4.0)]


def test_algorithms_without_a_native_one():
    names = lanterne.spawn(2, lambda comm: comm.algorithms("all_reduce"))[0]
    assert "ring" in names and "native" not in names
    assert all("stragglar" not in names for names in lanterne.spawn(3, lambda comm: comm.algorithms("all_reduce")))


def test_a_start_looks_at_few_of_many_open_messages(monkeypatch):
    polls, poll = [], MessageRequest._poll
    monkeypatch.setattr(MessageRequest, "_poll", lambda self: polls.append(self) or poll(self))

    def job(comm):
        words = np.arange(200)
        came = np.zeros_like(words)
        receives = [comm.start_recv(came[i : i + 1], 0) for i in range(200)]
        assert len(polls) < 2 * 200
        for i in range(200):
            comm.start_send(words[i : i + 1], 0).wait()
        for receive in receives:
            receive.wait()
        return (came == words).all()

    assert lanterne.spawn(1, job) == [True]


def test_where_nobody_looks_meanwhile_who_asks_to_be_told_is_told_of_what_is_over():
    def job(comm):
        told = []
        comm.start_all_reduce(np.ones(1), np.empty(1)).then(lambda: told.append("call"))
        receive = comm.start_recv(came := np.zeros(1), 0)
        receive.then(lambda: told.append("message"))
        assert told == ["call"]
        comm.start_send(np.full(1, 7.0), 0).wait()
        return [*told, came[0]]

    assert lanterne.spawn(1, job) == [["call", "message", 7.0]]


def test_a_send_to_oneself_is_refused():
    def job(comm):
        with pytest.raises(lanterne.InputError, match="send: got peer 0, this rank itself, expected another"):
            comm.send(np.zeros(1), 0)
        comm.send_recv(np.full(1, 7.0), out := np.zeros(1), 0)
        return out[0]

    assert lanterne.spawn(1, job) == [7.0]


def test_a_message_that_is_complete_lets_go_of_its_array():
    def job(comm):
        array = np.zeros(1000)
        its_memory = weakref.ref(array)
        receive = comm.start_recv(np.zeros(1000), 0)
        comm.start_send(array, 0).wait()
        del array
        receive.wait()
        return its_memory()

    assert lanterne.spawn(1, job) == [None]
