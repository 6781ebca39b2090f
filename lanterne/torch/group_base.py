"""Base of the process group: start and end of calls, coalescing, names, timeouts, shutdown."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Self

import torch

from lanterne.collectives.communicator import Communicator
from lanterne.errors import InputError, LanterneError
from lanterne.torch.drafts import Draft, Tensors, check_dtypes
from lanterne.torch.monitored_barrier import MonitoredBarrier
from lanterne.torch.step_log import StepLog
from lanterne.torch.torch_internals import ProcessGroup, Untraced, limit_of, seconds, torch_errors
from lanterne.torch.works import RequestWork


class GroupBase(Untraced, ProcessGroup):
    """A torch process group over `communicator`, without verbs; see LanterneGroup.

    Args:
        timeout_s: default timeout of calls.
        on_shutdown: called once this group has ended.
    """

    def __init__(self, communicator: Communicator, timeout_s: float, on_shutdown: Callable[[Any], object]) -> None:
        super().__init__(communicator.rank, communicator.world_size)
        self._on_shutdown = on_shutdown
        self._name = self._desc = ""
        self._adopt(communicator, timeout_s)

    def _adopt(self, communicator: Communicator, timeout_s: float) -> None:
        """Use `communicator` from now on."""
        self.communicator: Communicator = communicator
        communicator.timeout_s = timeout_s
        self._sequence = 0
        self._together: list[Draft] | None = None
        self._monitored: MonitoredBarrier | None = None
        self.steps: StepLog = StepLog(communicator)

    # -- calls

    def _begin(self, draft: Draft, opts: Any, verb: str, *args: Any, **options: Any) -> None:
        """Start `verb` of the communicator; run it to its end if the caller waits for it anyway."""
        comm = self.communicator
        self._sequence += 1
        if opts.asyncOp or self._together is not None:
            draft.requests.append(getattr(comm, f"start_{verb}")(*args, **options))
        else:
            getattr(comm, verb)(*args, timeout_s=self._limit_s(opts), **options)

    def _work(self, draft: Draft, opts: Any, result: Tensors, source: Callable[[], int] | None = None) -> RequestWork:
        if self._together is not None:
            self._together.append(draft)
        return RequestWork(draft.requests, self._limit_s(opts), result, draft.finish, source)

    def _limit_s(self, opts: Any) -> float:
        limit_s = None if opts is None else seconds(opts.timeout)
        return self.communicator.timeout_s if limit_s is None else limit_s

    def _counts_of(self, verb: str, parts: Tensors, tensor: torch.Tensor) -> list[int]:
        """Return the element count of each of `parts`; raise unless this rank's part fits `tensor`."""
        if len(parts) != self.size():
            raise InputError(f"{verb}: got a list of {len(parts)} tensors, expected {self.size()}")
        for part in parts:
            check_dtypes(verb, part, tensor)
        counts, rank = [part.numel() for part in parts], self.rank()
        if tensor.numel() != counts[rank]:
            expected = f"expected {counts[rank]} as tensor {rank} of the list"
            raise InputError(f"{verb}: got {tensor.numel()} elements, {expected}")
        return counts

    # -- several calls as one

    def _start_coalescing(self, _device: torch.device) -> None:
        self._together = []

    def _end_coalescing(self, _device: torch.device) -> RequestWork:
        together, self._together = self._together or [], None

        def finish() -> None:
            for draft in together:
                draft.finish()

        return RequestWork([each for draft in together for each in draft.requests], self._limit_s(None), (), finish)

    # -- names, numbers, the end

    def name(self) -> str:
        return "lanterne"

    getBackendName = _get_backend_name = name

    @property
    def group_name(self) -> str:
        return self._name

    @group_name.setter
    def group_name(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    _set_group_name = setGroupName

    @property
    def group_desc(self) -> str:
        return self._desc

    @group_desc.setter
    def group_desc(self, desc: str) -> None:
        self._desc = desc

    def getGroupDesc(self) -> str:
        return self._desc

    def setGroupDesc(self, desc: str) -> None:
        self._desc = desc

    _set_group_desc = setGroupDesc

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> Self:
        """Return this group, which torch asks for the capabilities of `device`.

        Raises:
            RuntimeError: another device, as torch expects it.
        """
        served = [each.type for each in self._device_types]
        if torch.device(device).type not in served:
            raise RuntimeError(
                f"lanterne: got device {device}, expected {' or '.join(served)}, which this group serves"
            )
        return self

    get_backend = _get_backend
    supports_splitting = supports_coalescing = supports_time_estimate = False

    def supports_tensor_alloc(self, _device: torch.device) -> bool:
        """Return whether the backend allocates tensors."""
        return False

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the default timeout of calls."""
        self.communicator.timeout_s = limit_of("set_timeout", timeout)

    def monitored_barrier(self, timeout: timedelta | float | None = None, wait_all_ranks: bool = False) -> None:
        """Return once every rank has called it; rank 0 names the first missing rank, or all if `wait_all_ranks`.

        Args:
            timeout: None for the group's; a number is seconds.

        Raises:
            DistBackendError: on every rank that arrived, if one did not.
        """
        if timeout is None:
            limit_s = self.communicator.timeout_s
        else:
            limit_s = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
        with torch_errors():
            if self._monitored is None:
                self._monitored = MonitoredBarrier(self.communicator)
            self._monitored.wait(limit_s, all_ranks=wait_all_ranks)

    def errored(self) -> LanterneError | None:
        """Return the error that ended this group; None while it works."""
        return self.communicator.failure

    def abort(self) -> None:
        """End this group now; current and later calls raise, here and on the other ranks."""
        self.communicator.abort("aborted by its user")

    def shutdown(self) -> None:
        """End this group; a second call does nothing."""
        on_shutdown, self._on_shutdown = self._on_shutdown, lambda _group: None
        on_shutdown(self)
        with torch_errors():
            self.communicator.close()
