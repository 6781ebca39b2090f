"""How the ranks of a validation take turns: waits that leave the cores alone, and which ranks share cores.

Where a machine has fewer cores than ranks, tests that run at once measure each other. There, as many ranks compute at
a time as there are cores, and as many pairs exchange as there are pairs of cores; all others sleep.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from lanterne.collectives.communicator import core_of
from lanterne.collectives.message_lanes import Lane
from lanterne.failslow.validate.device_links import DeviceWire
from lanterne.transport.rank_group import host_identity

if TYPE_CHECKING:
    from lanterne.collectives.communicator import Communicator
    from lanterne.collectives.execute.requests import MessageRequest
    from lanterne.transport.base import Transport

SHORTEST_NAP_S, LONGEST_NAP_S = 50e-6, 2e-3
KNOWN_CORES = 62
START_MARGIN_S = 5e-3

# Ranks that do something together: one, or the two of a link.
Ranks = TypeVar("Ranks", bound=tuple[int, ...])


class Probe:
    """A communicator of the ranks under test, and where they are.

    Args:
        comm: a Communicator that nobody else uses; all its members make a Probe.
        device_name: only ranks of one name are compared.
        wire: a Communicator of the same ranks, which the links are tested over; None for `comm`.
        on_device: whether its messages are of device memory, over nccl.

    Attributes: `comm`, `wire`; `device_wire`, None without; `path`, what links are tested over, for people; by rank,
    equal where these are the same: `hosts`, `machines` (of one clock; a machine may play several hosts), `places` (of a
    machine and its cores), `devices`; `crowded`: whether a machine has more ranks than cores; `starved`: or fewer than
    two for each rank.
    """

    def __init__(
        self, comm: Communicator, device_name: str, wire: Communicator | None = None, *, on_device: bool = False
    ) -> None:
        self.comm = comm
        self.wire: Communicator = wire or comm
        self.device_wire: DeviceWire | None = DeviceWire(self.wire) if on_device else None
        transport = self.wire.transport
        # What nccl has beside it.
        host: Transport = getattr(transport, "host", transport)
        self.path: str = f"host memory over {host.name}" if self.device_wire is None else self.device_wire.path
        mask, count = _cores()
        mine = [_number(host_identity()), _number(_boot()), _number(device_name), mask, count]
        table = np.empty((comm.world_size, len(mine)), np.int64)
        comm.all_gather(np.array(mine, np.int64), table)
        hosts, machines, devices, cores = (tuple(table[:, i].tolist()) for i in range(4))
        self.hosts: tuple[int, ...] = hosts
        self.machines: tuple[int, ...] = machines
        self.devices: tuple[int, ...] = devices
        self.places: tuple[tuple[int, int], ...] = tuple(zip(machines, cores, strict=True))
        self._cores_of: dict[int, int] = {}
        for machine in set(self.machines):
            here = table[table[:, 1] == machine]
            masks = here[:, 3]
            self._cores_of[machine] = (
                int(np.bitwise_or.reduce(masks)).bit_count() if (masks > 0).all() else int(here[:, 4].max())
            )
        ranks_on = self.machines.count
        self.crowded: bool = any(ranks_on(machine) > cores for machine, cores in self._cores_of.items())
        self.starved: bool = any(2 * ranks_on(machine) > cores for machine, cores in self._cores_of.items())
        self._buffers: tuple[NDArray[np.uint8], NDArray[np.uint8]] | None = None

    def turns(self, groups: Sequence[Ranks]) -> tuple[tuple[Ranks, ...], ...]:
        """`groups` (ranks, or links), no rank in two of them, in the batches that can run at once."""
        least = max(map(len, groups), default=1)
        cores_of = {machine: max(least, cores) for machine, cores in self._cores_of.items()}
        return take_turns(groups, self.machines, cores_of)

    def start_together(self) -> float:
        """An instant of time.monotonic(), a little ahead, the same on all ranks of a machine; a barrier."""
        now_s = self.gather(np.array([time.monotonic()]))[:, 0]
        here = self.machines[self.comm.rank]
        return START_MARGIN_S + max(float(now_s[rank]) for rank, machine in enumerate(self.machines) if machine == here)

    def close(self) -> None:
        """Release its communicators."""
        self.wire.close()
        self.comm.close()

    def buffers(self, nbytes: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """(out, in): bytes to send and to receive into, at least `nbytes` of each."""
        if self._buffers is None or len(self._buffers[0]) < nbytes:
            self._buffers = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
        return self._buffers

    def wait(self, request: MessageRequest) -> None:
        """As request.wait(), for a wait that may be long: it naps, so that ranks under test have the cores."""
        nap_s = SHORTEST_NAP_S
        deadline_s = time.monotonic() + self.comm.timeout_s
        while not request.test():
            time.sleep(nap_s)
            nap_s = min(2 * nap_s, LONGEST_NAP_S)
            if nap_s == LONGEST_NAP_S:
                core_of(self.comm).check_peers(request)
            if time.monotonic() > deadline_s:
                request.wait(0.0)

    def barrier(self) -> None:
        """Return once every rank of the probe has called it."""
        comm, distance = self.comm, 1
        while distance < comm.world_size:
            after, before = (comm.rank + distance) % comm.world_size, (comm.rank - distance) % comm.world_size
            arrived = comm.start_recv(_EMPTY, before, tag=Lane.PROBE_BARRIER)
            comm.start_send(_EMPTY, after, tag=Lane.PROBE_BARRIER).wait()
            self.wait(arrived)
            distance *= 2

    def gather(self, array: NDArray[Any]) -> NDArray[Any]:
        """Every rank's `array` (all of one shape and dtype), stacked by rank."""
        out = np.empty((self.comm.world_size, *array.shape), array.dtype)
        self.comm.all_gather(np.ascontiguousarray(array), out)
        return out


def take_turns(
    groups: Iterable[Ranks], machines: Sequence[int], cores_of: Mapping[int, int]
) -> tuple[tuple[Ranks, ...], ...]:
    """Partition `groups` into batches that leave each rank a core.

    Args:
        machines: the machine of each rank.
        cores_of: the cores of each machine.

    Machines that have a core for each of their ranks are never a reason to wait.
    """
    batches: list[list[Ranks]] = []
    loads: list[dict[int, int]] = []
    for group in groups:
        need: dict[int, int] = {}
        for rank in group:
            machine = machines[rank]
            if machines.count(machine) > cores_of[machine]:
                need[machine] = need.get(machine, 0) + 1
        free = (i for i, load in enumerate(loads) if all(load.get(m, 0) + k <= cores_of[m] for m, k in need.items()))
        index = next(free, len(batches))
        if index == len(batches):
            batches.append([])
            loads.append({})
        batches[index].append(group)
        for machine, count in need.items():
            loads[index][machine] = loads[index].get(machine, 0) + count
    return tuple(tuple(batch) for batch in batches)


def _cores() -> tuple[int, int]:
    """(bit mask, number) of the cores that this rank may use; no mask where their numbers are too high for one."""
    cores = os.sched_getaffinity(0)
    return sum(1 << core for core in cores) if max(cores) < KNOWN_CORES else 0, len(cores)


def _boot() -> str:
    """What processes have in common whose time.monotonic() is one clock: the boot."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read()
    except OSError:
        return host_identity()


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


_EMPTY = np.empty(0, np.uint8)
