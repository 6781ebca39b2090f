"""lanterne as a backend of ray.util.collective: `import lanterne.ray` on the driver and in each actor, then "LANTERNE".

  collective.init_collective_group(world_size, rank, backend="LANTERNE", group_name="gradients")
  collective.allreduce(array, group_name="gradients")

The other actors begin an all-reduce before a late one. Tried with Ray 2.60.0. Arrays are NumPy's, CPU tensors of torch,
or with LANTERNE_TRANSPORT=nccl CuPy's, and contiguous. Actors meet at Ray's internal key-value store.
"""

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import ray.experimental.internal_kv as kv
from ray.util.collective.backend_registry import register_collective_backend

from lanterne.collectives.jobs import join
from lanterne.errors import InputError, TransportTimeout
from lanterne.kernels.arrays import is_device_array
from lanterne.transport.timeouts import DEFAULT_TIMEOUT_S

if TYPE_CHECKING:

    class BaseGroup:
        """Ray's base of groups, as far as it is used."""

        def __init__(self, world_size: int, rank: int, group_name: str) -> None: ...

else:
    from ray.util.collective.collective_group.base_collective_group import BaseGroup

BACKEND = "LANTERNE"
# Between two looks at a key that is not there yet.
PAUSE_S = 0.02


class _Place:
    """Where the ranks of a group meet: keys of Ray's store, which `clear` takes away again."""

    def __init__(self, name: str, timeout_s: float) -> None:
        self._prefix, self._timeout_s = f"lanterne/{name}/", timeout_s
        self._set: list[str] = []

    def set(self, key: str, value: str) -> None:
        self._set.append(key)
        kv._internal_kv_put(self._prefix + key, value, overwrite=True)

    def get(self, key: str) -> bytes:
        until_s = time.monotonic() + self._timeout_s
        while True:
            found: bytes | None = kv._internal_kv_get(self._prefix + key)
            if found is not None:
                return found
            if time.monotonic() > until_s:
                raise TransportTimeout(f"ray group {self._prefix[9:-1]}: no {key} within {self._timeout_s:g} s")
            time.sleep(PAUSE_S)

    def clear(self) -> None:
        for key in self._set:
            kv._internal_kv_del(self._prefix + key)


class LanterneGroup(BaseGroup):
    """A group of actors, over a Communicator.

    Attributes: `communicator`, which has all that Ray's verbs have not.

    Raises:
        TransportTimeout: an actor did not come within the default timeout; and as lanterne.join.
    """

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        place = _Place(group_name, DEFAULT_TIMEOUT_S)
        try:
            self.communicator = join(place, rank, world_size)
            self.communicator.barrier()
        finally:
            # All have read what was set, or it has failed: a group of this name can be made again.
            place.clear()

    @classmethod
    def backend(cls) -> str:
        """Return the name that Ray knows it by."""
        return BACKEND

    @classmethod
    def check_backend_availability(cls) -> bool:
        """Return whether it can be used here: it can."""
        return True

    def destroy_group(self) -> None:
        """End this group."""
        self.communicator.close()

    def allreduce(self, tensor: Sequence[Any], allreduce_options: Any) -> None:
        array, dtype = _array(tensor, "allreduce")
        self.communicator.all_reduce(array, array, _op(allreduce_options), dtype=dtype)

    def barrier(self, barrier_options: Any = None) -> None:
        self.communicator.barrier()

    def reduce(self, tensor: Sequence[Any], reduce_options: Any) -> None:
        array, dtype = _array(tensor, "reduce")
        root = int(reduce_options.root_rank)
        # Ray leaves the arrays of other ranks as they are.
        out = array if self.communicator.rank == root else None
        self.communicator.reduce(array, out, root, _op(reduce_options), dtype=dtype)

    def broadcast(self, tensor: Sequence[Any], broadcast_options: Any) -> None:
        self.communicator.broadcast(_array(tensor, "broadcast")[0], int(broadcast_options.root_rank))

    def allgather(self, tensor_list: Sequence[Any], tensor: Sequence[Any], allgather_options: Any = None) -> None:
        array, _ = _array(tensor, "allgather")
        parts = self._parts(tensor_list, array, "allgather")
        out = _stacked(array, len(parts))
        self.communicator.all_gather(array, out)
        for part, found in zip(parts, out.reshape(len(parts), -1), strict=True):
            part[...] = found

    def reducescatter(self, tensor: Sequence[Any], tensor_list: Sequence[Any], reducescatter_options: Any) -> None:
        array, dtype = _array(tensor, "reducescatter")
        parts = self._parts(tensor_list, array, "reducescatter")
        given = _stacked(array, len(parts))
        for row, part in zip(given.reshape(len(parts), -1), parts, strict=True):
            row[...] = part
        self.communicator.reduce_scatter(given, array, _op(reducescatter_options), dtype=dtype)

    def send(self, tensor: Sequence[Any], send_options: Any) -> None:
        self.communicator.send(_array(tensor, "send")[0], int(send_options.dst_rank))

    def recv(self, tensor: Sequence[Any], recv_options: Any) -> None:
        self.communicator.recv(_array(tensor, "recv")[0], int(recv_options.src_rank))

    def _parts(self, tensor_list: Sequence[Any], array: Any, verb: str) -> list[Any]:
        """Return the flat arrays of a list that has one for each rank, as large as `array`."""
        (given,) = tensor_list
        parts = [_array([each], verb)[0] for each in given]
        sizes = {each.size for each in parts}
        if len(parts) != self.communicator.world_size or sizes != {array.size}:
            got = f"got {len(parts)} arrays of {sorted(sizes)} elements"
            raise InputError(f"{verb}: {got}, expected {self.communicator.world_size} of {array.size}")
        return parts


def _array(tensors: Sequence[Any], verb: str) -> tuple[Any, str | None]:
    """Return the one array of `tensors`, flat and with its memory, and its dtype for lanterne where it says none."""
    if len(tensors) != 1:
        raise InputError(f"{verb}: got {len(tensors)} arrays, expected one: an actor has one device")
    (given,) = tensors
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(given, torch.Tensor) and given.device.type == "cpu":
        # Not sooner: without torch's tensors none of it is needed.
        from lanterne.torch.tensor_views import view_of

        view = view_of(given)
        return view.array, view.dtype
    if not given.flags.c_contiguous:
        raise InputError(f"{verb}: got an array that is not contiguous, expected one")
    return given.reshape(-1), None


def _stacked(array: Any, count: int) -> Any:
    """Return an array as long as `count` of `array`, where that one is."""
    if is_device_array(array):
        import cupy as xp
    else:
        import numpy as xp
    return xp.empty(count * array.size, array.dtype)


def _op(options: Any) -> Any:
    """Return lanterne's name of Ray's ReduceOp."""
    name = str(options.reduceOp.name).lower()
    return "prod" if name == "product" else name


register_collective_backend(BACKEND, LanterneGroup)
