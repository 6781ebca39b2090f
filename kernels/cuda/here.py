"""Work on one CUDA device, whichever is the current one, with CUDA's errors as ours."""

from types import TracebackType
from typing import Any

from lanterne.errors import TransportError


class Here:
    """A block on a runtime's device, in which CUDA's errors become ours, so that they end a communicator by name."""

    __slots__ = ("_device", "device_id", "errors")

    def __init__(self, device: Any, device_id: int, cuda: Any):
        """`device`: None where there is but one, which is the current one anyway."""
        self._device = device
        self.device_id: int = device_id
        self.errors: tuple[type[Exception], ...] = (cuda.runtime.CUDARuntimeError, cuda.driver.CUDADriverError)

    def __enter__(self) -> None:
        if self._device is not None:
            try:
                self._device.__enter__()
            except self.errors as error:
                # One that has failed refuses even to become the current one.
                raise self._ours(error) from error

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        try:
            if self._device is not None:
                self._device.__exit__()
        except self.errors as refused:
            # A device that has failed may refuse even to give way to the one before.
            error = error or refused
        if error is not None and isinstance(error, self.errors):
            raise self._ours(error) from error

    def _ours(self, error: BaseException) -> TransportError:
        return TransportError(f"device {self.device_id}: {error}")

    def value(self, returned: tuple[Any, ...]) -> Any:
        """What a call of the driver's returned beside its status.

        Raises:
            TransportError: the status says that CUDA refused.
        """
        status, *values = returned
        if int(status) != 0:
            raise TransportError(f"device {self.device_id}: CUDA driver: got {status.name}, expected CUDA_SUCCESS")
        return values[0] if values else None
