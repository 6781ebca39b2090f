"""The process group of lanterne: torch.distributed's verbs as calls of a Communicator."""

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol, Self, TypeVar

import torch

from lanterne.collectives.communicator import Communicator
from lanterne.collectives.mailbox import Mailbox, MailRequest
from lanterne.torch.accelerators import Accelerator
from lanterne.torch.device_calls import ROLES, tensors_of
from lanterne.torch.drafts import Draft, Tensors
from lanterne.torch.group_movements import GroupMovements
from lanterne.torch.group_reductions import GroupReductions
from lanterne.torch.step_log import StepLog
from lanterne.torch.torch_internals import old_names, torch_errors, untraced
from lanterne.torch.works import RequestWork

_Kind = TypeVar("_Kind", bound=type)


class HostGroup(GroupReductions, GroupMovements):
    """The ranks of a torch process group, over `communicator`, for CPU tensors.

    Args:
        timeout_s: default timeout of calls.
        on_shutdown: called once this group has ended.

    Every verb is torch's, and raises DistBackendError or ValueError. Tensors are dense; those that are not contiguous
    are copied before and after. all_reduce takes sparse ones, too.
    """

    @property
    def _mailbox(self) -> Mailbox:
        # Made when first needed: the transport keeps its receives.
        return self.communicator.mailbox()

    def send(self, tensors: Tensors, peer: int, tag: int = 0) -> RequestWork:
        draft = Draft()
        with torch_errors():
            for tensor in tensors:
                draft.requests.append(self._mailbox.start_send(draft.read(tensor).array, peer, tag=tag))
        return self._work(draft, None, tensors)

    def recv(self, tensors: Tensors, peer: int | None, tag: int = 0) -> RequestWork:
        draft, received = Draft(), list[MailRequest]()
        with torch_errors():
            for tensor in tensors:
                received.append(self._mailbox.start_recv(draft.write(tensor).array, peer, tag=tag))
        draft.requests += received

        def source() -> int:
            found = received[-1].received
            return -1 if found is None else found.source

        return self._work(draft, None, tensors, source)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> RequestWork:
        return self.recv(tensors, None, tag)


class DeviceCalls(Protocol):
    """Verbs on device tensors; see StagedCalls and NativeCalls."""

    @property
    def communicator(self) -> Communicator: ...
    @property
    def steps(self) -> StepLog | None: ...
    def call(self, verb: str, device: torch.device, args: Any, options: Any) -> Any: ...
    def start_coalescing(self, device: torch.device) -> None: ...
    def end_coalescing(self, device: torch.device) -> Any: ...
    def set_timeout(self, timeout_s: float) -> None: ...
    def settle(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


def by_device(kind: _Kind) -> _Kind:
    """Have each verb of `kind` call the group's DeviceCalls where its tensors are on a device; a decorator."""
    for name in ROLES:
        setattr(kind, name, _by_device(name, getattr(kind, name)))
    return kind


def _by_device(name: str, on_host: Callable[..., Any]) -> Callable[..., Any]:
    @untraced
    @functools.wraps(on_host)
    def verb(self: "LanterneGroup", *args: Any, **options: Any) -> Any:
        tensor = next(tensors_of(args), None)
        device = _device_of_barrier(args) if tensor is None else tensor.device
        if device is None or device.type == "cpu" or self._devices is None or device.type not in self._kinds:
            return on_host(self, *args, **options)
        return self._devices.call(name, device, args, options)

    untraced(verb)
    return verb


def _device_of_barrier(args: Any) -> torch.device | None:
    return getattr(args[0], "device", None) if args else None


@old_names
@by_device
class LanterneGroup(HostGroup):
    """The ranks of a torch process group, for CPU tensors and those of one device.

    Args:
        communicator, timeout_s, on_shutdown: as HostGroup has them.
    """

    _devices: DeviceCalls | None = None
    _kinds: tuple[str, ...] = ()

    def serve(self, accelerator: Accelerator, calls: DeviceCalls) -> Self:
        """Return this group, which from now on has `calls` do the verbs on tensors of `accelerator`."""
        self._devices, self._kinds = calls, (accelerator.kind,)
        return self

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), *map(torch.device, self._kinds)]

    def device_steps(self) -> tuple[StepLog, Communicator]:
        """Return the log of late ranks of the device's all_reduces, else of the CPU's, and its Communicator."""
        devices = self._devices
        if devices is None or devices.steps is None:
            return self.steps, self.communicator
        return devices.steps, devices.communicator

    def _start_coalescing(self, device: torch.device) -> None:
        if self._devices is not None and device.type in self._kinds:
            self._devices.start_coalescing(device)
        else:
            super()._start_coalescing(device)

    def _end_coalescing(self, device: torch.device) -> Any:
        if self._devices is not None and device.type in self._kinds:
            return self._devices.end_coalescing(device)
        return super()._end_coalescing(device)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the default timeout of calls."""
        super().set_timeout(timeout)
        if self._devices is not None:
            self._devices.set_timeout(self.communicator.timeout_s)

    def settle(self) -> None:
        """Have the CPU wait for the calls on the device; raise DistBackendError if one has failed."""
        if self._devices is not None:
            with torch_errors():
                self._devices.settle()

    def abort(self) -> None:
        """End this group now; current and later calls raise, here and on the other ranks."""
        if self._devices is not None:
            self._devices.abort()
        super().abort()

    def shutdown(self) -> None:
        """End this group, once the calls on the device have ended; a second call does nothing."""
        devices, self._devices = self._devices, None
        try:
            if devices is not None:
                devices.close()
        finally:
            super().shutdown()
