"""What an executor asks of a data plane: how the messages of a pipeline get from rank to rank.

In an iteration the executor first asks for all that this rank receives, then hands over what it sends as it is made:

    receives = [plane.receive(shape, dtype, peer) for ... in the order in which each peer sends]
    buffer = plane.lend(shape, dtype, peer) # the stage writes its result here
    waited = plane.send(buffer, peer)       # and the buffer is the plane's again
    x = receives[k].wait()                  # a buffer that this rank may read
    plane.release(x)                        # until here: W of its microbatch has ended
    plane.finish()                          # the iteration ends; its sends are done

Messages from one rank to another match in order, so nothing else tells them apart. Buffers are reused from iteration to
iteration. One thread calls a plane; a plane serves any number of iterations and of plans, one after the other.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lanterne.errors import LanterneError
from lanterne.transport.shaped import Link

if TYPE_CHECKING:
    from lanterne.pipeline.device.device_stage import Device

# NumPy's; CuPy's, which has the same operations, in a plane of device memory.
Buffer: TypeAlias = NDArray[Any]
Shape: TypeAlias = tuple[int, ...]


class Receive(ABC):
    """A message that is to come.

    Attributes: `looked_s`, of time.monotonic(), when it was last seen not to be here; -inf: never.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def looked_s(self) -> float: ...

    @abstractmethod
    def test(self) -> bool:
        """Make progress; True once the message is here. Raises as `wait`, but for the timeout."""

    @abstractmethod
    def wait(self, timeout_s: float | None = None) -> Buffer:
        """The buffer with the message, once it is here: (shape) of dtype, as asked for, to be read and then released.

        Args:
            timeout_s: seconds; None for the communicator's default.

        Raises:
            TransportTimeout, PeerFailed, TransportError: it did not come; names the rank.
        """


class DataPlane(ABC):
    """Sends and receives for one rank of a pipeline.

    Attributes:
        in_order: None if computing never waits for a send; else the sends that may be under way, one after the other,
            while the rank goes on computing: what the simulator takes as `queue` with `in_order`.
        on_device: whether its buffers are of the device that stages compute on; else they are the host's.
    """

    in_order: int | None = None
    on_device: bool = False

    @abstractmethod
    def lend(self, shape: Shape, dtype: np.dtype[Any], peer: int) -> Buffer:
        """A writable array (shape) of dtype to compute a message to rank `peer` in; `send` gives it back."""

    @abstractmethod
    def send(self, buffer: Buffer, peer: int, timeout_s: float | None = None) -> bool:
        """Send the lent `buffer` to rank `peer`. Returns whether the rank had to wait for earlier sends.

        Raises:
            TransportTimeout, PeerFailed, TransportError: as Receive.wait.
        """

    @abstractmethod
    def receive(self, shape: Shape, dtype: np.dtype[Any], peer: int) -> Receive:
        """The Receive of the next message from rank `peer` not asked for yet."""

    @abstractmethod
    def release(self, buffer: Buffer) -> None:
        """Take back a buffer that a Receive gave."""

    @abstractmethod
    def finish(self, timeout_s: float | None = None) -> None:
        """Return once all sends are done: nothing of this iteration is under way from here. Raises as `send`."""

    @abstractmethod
    def set_link(self, source: int, destination: int, link: Link) -> None:
        """Change an emulated Link of the ranks' from now on; every rank calls it alike, between iterations."""

    @abstractmethod
    def stage_on(self, device: "Device") -> None:
        """From now on stages on `device` write and read this plane's buffers; before the first is lent."""

    @abstractmethod
    def fail(self, error: LanterneError) -> None:
        """This rank cannot go on because of `error`: all others' waits raise it, in bounded time."""

    @abstractmethod
    def close(self) -> None:
        """Release everything but the communicator that it was made for; a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Pool:
    """Arrays to lend, by shape and dtype, kept when they come back.

    Args:
        make: a function of shape and dtype that gives a new one.
    """

    __slots__ = ("_free", "_make")

    def __init__(self, make: Callable[[Shape, np.dtype[Any]], Buffer] = np.empty) -> None:
        self._free: dict[tuple[Shape, np.dtype[Any]], list[Buffer]] = {}
        self._make = make

    def take(self, shape: Shape, dtype: np.dtype[Any]) -> Buffer:
        """An array whose content is anything."""
        free = self._free.get((shape, dtype))
        return free.pop() if free else self._make(shape, dtype)

    def give(self, array: Buffer) -> None:
        """Take `array` back."""
        self._free.setdefault((array.shape, array.dtype), []).append(array)


def free_nbytes() -> int:
    """Bytes of memory that this host could give."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
