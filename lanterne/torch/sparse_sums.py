"""All-reduce of sparse tensors: every rank gets what all have, and adds up what lies at one place."""

from collections.abc import Callable

import numpy as np
import torch

from lanterne.collectives.communicator import Communicator
from lanterne.errors import InputError
from lanterne.kernels.dtypes import Op
from lanterne.torch.tensor_views import check_device, view_of
from lanterne.torch.works import Started


def start_sparse_sum(
    comm: Communicator, tensor: torch.Tensor, op: Op, timeout_s: float
) -> tuple[list[Started], Callable[[], None]]:
    """(What to wait for, what then puts the sum over all ranks, or the mean, into `tensor`, a sparse COO tensor.)

    It returns once all ranks have come, since none knows before how much the others have.

    Raises:
        InputError: another op, or tensors that differ in shape over ranks.

    Cost: a small all_gather, and two of all that the ranks have: the ordinary price of sparse gradients.
    """
    check_device(tensor)
    if op not in ("sum", "mean"):
        raise InputError(f"all_reduce of sparse tensors: got {op}, expected sum or avg")
    mine = tensor.detach().coalesce()
    about = np.array([mine.indices().shape[1], mine.sparse_dim(), *mine.shape], np.int64)
    everyone = np.empty((comm.world_size, about.size), np.int64)
    comm.all_gather(about, everyone, timeout_s=timeout_s)
    if (everyone[:, 1:] != about[1:]).any():
        shapes = {tuple(row[2:].tolist()) for row in everyone}
        raise InputError(f"all_reduce of sparse tensors: got shapes {shapes}, expected the same on every rank")
    counts = everyone[:, 0]
    requests: list[Started] = []

    def gather(part: torch.Tensor) -> torch.Tensor:
        """The rows of `part` of all ranks, once the requests are complete."""
        whole = torch.empty(int(counts.sum()), *part.shape[1:], dtype=part.dtype)
        each = (counts * part.shape[1:].numel()).tolist()
        requests.append(comm.start_all_gather(view_of(part).array, view_of(whole).array, counts=each))
        return whole

    places, values = gather(mine.indices().t().contiguous()), gather(mine.values().contiguous())

    def finish() -> None:
        found = torch.sparse_coo_tensor(places.t(), values, tensor.shape, check_invariants=False).coalesce()
        # Not of a detached one, which would get memory of its own.
        with torch.no_grad():
            tensor.copy_(found / comm.world_size if op == "mean" else found)

    return requests, finish
