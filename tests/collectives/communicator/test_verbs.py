"""Verbs that move parts and scans, between threads; test_communicator_jobs.py has them over mpi, ucx and tcp."""

import numpy as np
import pytest
from outcomes import outcome
from verbs import check_verbs

import lanterne
from lanterne.errors import InputError
from lanterne.kernels.dtypes import PremulSum


@pytest.mark.parametrize("algorithm", ["first", "last"])
@pytest.mark.parametrize("n", [1, 3, 4])
def test_every_verb(n, algorithm):
    lanterne.spawn(n, check_verbs, algorithm, timeout_s=60.0)


X, Y = np.ones(4), np.empty(4)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda comm: comm.all_gather(X, np.empty(9), counts=[4, 4]), r"got out_array of 9 elements, expected 8"),
        (lambda comm: comm.all_gather(X, np.empty(8), counts=[4]), r"got counts \(4,\), expected 2 whole numbers"),
        (lambda comm: comm.all_gather(X, np.empty(8), counts=[4, -4]), "none negative"),
        (lambda comm: comm.all_gather(X, np.empty(8), counts=[4.0, 4.0]), "expected 2 whole numbers"),
        (lambda comm: comm.all_to_all(X, Y, in_counts=[2, 2]), r"got out_counts None, expected 2 whole numbers"),
        (lambda comm: comm.all_to_all(X, Y, in_counts=[1, 3], out_counts=[2, 2]), "of rank . itself, expected"),
        (lambda comm: comm.start_gather(X, None, comm.rank), "out_array: got NoneType"),
        (lambda comm: comm.scatter(None, Y, comm.rank), "in_array: got NoneType"),
        (lambda comm: comm.scatter(np.ones(7), Y, comm.rank), "in_array of 7 elements, expected a multiple of 2"),
        (lambda comm: comm.gather(X, Y, 2), "got root 2, expected 0 to 1"),
        (lambda comm: comm.scan(X, Y, "mean"), "scan: got op mean, expected another"),
        (lambda comm: comm.all_reduce(X, Y, "land"), "op: got land of float64, expected one of int8"),
        (lambda comm: comm.all_reduce(X, Y, PremulSum("a")), "got a factor 'a'"),
        (lambda comm: comm.all_reduce(X.astype(int), X.astype(int), PremulSum(0.5)), "got a factor 0.5"),
        (lambda comm: comm.all_reduce(X * 1j, X * 1j, "max"), "op: got max of complex128"),
        (lambda comm: comm.all_reduce(X, np.broadcast_to(1.0, 4)), "read-only"),
    ],
)
def test_bad_input_has_one_line_and_sends_nothing(call, text):
    def run(comm):
        error = outcome(comm, call)
        comm.barrier()
        return error

    for error in lanterne.spawn(2, run, timeout_s=20.0):
        assert isinstance(error, InputError), error
        assert "\n" not in str(error), error
        with pytest.raises(InputError, match=text):
            raise error


def test_nobody_passes_on_parts_of_sizes_unknown_to_it():
    def run(comm):
        return outcome(comm, lambda comm: comm.gather(X, np.empty(16), 0, algorithm="binomial", counts=[4] * 4))

    for error in lanterne.spawn(4, run, timeout_s=20.0):
        assert "expected one that sends every part straight to its owner" in str(error), error


def test_ranks_that_disagree_about_counts_find_out():
    def run(comm):
        counts = [3, 4] if comm.rank else [4, 3]
        return outcome(comm, lambda comm: comm.all_gather(np.ones(counts[comm.rank]), np.empty(7), counts=counts))

    errors = lanterne.spawn(2, run, timeout_s=20.0)
    assert all("rank 0 got all_gather(" in str(error) and "count=4+3" in str(error) for error in errors)


def test_a_mailbox_keeps_what_does_not_fit():
    def run(comm):
        box, out = comm.mailbox(), np.empty(2)
        if comm.rank == 0:
            box.send(np.arange(5.0), 1, tag=7)
            return None
        error = outcome(comm, lambda comm: box.recv(out))
        whole = np.empty(5)
        found = box.recv(whole)
        for bad, text in (
            (lambda: box.recv(out, 2), "recv: got peer 2, expected 0 to 1"),
            (lambda: box.probe(tag=-1), "probe: got tag -1"),
            (lambda: box.recv(np.broadcast_to(0.0, 3)), "read-only"),
            (lambda: box.send(out, 0, tag=2**63), "send: got tag"),
        ):
            with pytest.raises(InputError, match=text):
                bad()
        return str(error), found, whole.tolist()

    error, found, whole = lanterne.spawn(2, run, timeout_s=20.0)[1]
    assert error == "recv: got a message of 40 bytes from rank 0 with tag 7, expected at most 16"
    assert (found, whole) == ((0, 7, 40), [0.0, 1.0, 2.0, 3.0, 4.0])


def test_a_receive_from_any_rank_ends_with_a_death():
    def run(comm):
        if comm.rank == 2:
            raise RuntimeError("gone")
        return comm.mailbox().recv(np.empty(1))

    with pytest.raises(RuntimeError, match="gone"):
        lanterne.spawn(3, run, timeout_s=20.0)


def test_a_bound_call_that_copies_reads_anew():
    def run(comm):
        values, out = np.ones((3, 4))[:, ::2], np.zeros((4, 3))[::2].T
        swap = np.arange(2.0)
        calls = comm.bind("all_reduce", values, out), comm.bind("all_to_all", swap, swap)
        for turn in range(3):
            values[:] = turn
            for call in calls:
                call()
            np.testing.assert_array_equal(out, 2.0 * turn, err_msg=f"turn {turn}")
        return swap.tolist()

    # Swapped three times.
    assert lanterne.spawn(2, run, timeout_s=20.0) == [[0.0, 0.0], [1.0, 1.0]]


def test_torch_tensors_of_types_that_numpy_has_not():
    torch = pytest.importorskip("torch")

    def run(comm):
        values, out = torch.arange(8, dtype=torch.bfloat16), torch.empty(8, dtype=torch.bfloat16)
        comm.all_reduce(values, out)
        small = torch.full((4,), comm.rank + 1.0).to(torch.float8_e5m2)
        gathered = torch.empty(8, dtype=torch.float8_e5m2)
        comm.all_gather(small, gathered)
        error = outcome(comm, lambda comm: comm.all_reduce(small, small))
        return out.tolist(), gathered.float().tolist(), str(error)

    for summed, gathered, error in lanterne.spawn(2, run, timeout_s=20.0):
        assert summed == [2.0 * i for i in range(8)], (summed, gathered, error)
        assert gathered == [1.0] * 4 + [2.0] * 4, (summed, gathered, error)
        assert "dtype: got" in error and "float8_e5m2" in error, (summed, gathered, error)
