"""Saved activations that do not fit the device go to the host, and come back before they are needed.

The plan says when each microbatch's activations are next read, so what is spilled is always what is needed last, and
what is spilled comes back while the action before is still to come. A plan may then need more than the device's cap.
Paper: ADAPTRA, section 5.2, second benefit of delegates; differs: what is spilled is what the plan needs last.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lanterne.errors import InputError
from lanterne.kernels.arrays import address_of
from lanterne.kernels.cuda.runtime import CudaRuntime
from lanterne.kernels.staging import Copy, Stager, wait_for
from lanterne.pipeline.execute.stage import Result, Samples, StageArray, WrappedStage
from lanterne.pipeline.model.stage_layers import LayerStage
from lanterne.pipeline.plan.plan import Plan
from lanterne.transport.rails.delegate_memory import Arena

# For the error of a full store; a cache line.
ROOM, ALIGN = "room for all activations that are spilled at one time", 64
# Copies of what has been computed take no longer on any link to the host.
CLOSE_S = 10.0

# (stage, microbatch).
Key: TypeAlias = tuple[int, int]
# Where a store has an array: offset, number of elements, dtype.
Slot: TypeAlias = tuple[int, int, np.dtype[Any]]
# Equal for arrays that are the same bytes; it also tells the shape and strides of those with gaps.
Identity: TypeAlias = tuple[Any, ...]


class Spill:
    """The stages of one rank under one cap.

    Args:
        stages: those of the rank, by stage.
        cap_nbytes: the most that they may hold between two actions.
        store: a HostStore or DeviceStore.

    Attributes:
        stages: stage -> SpilledStage, for the executor in place of those given.
        peak_nbytes: the most held between two actions so far; `spilled_nbytes`, moved to the store so far.
    """

    def __init__(self, stages: Mapping[int, LayerStage], cap_nbytes: int, store: "HostStore | DeviceStore") -> None:
        if cap_nbytes < 1:
            raise InputError(f"spill: got a cap of {cap_nbytes} bytes, expected at least 1")
        self.cap_nbytes = cap_nbytes
        self.store = store
        self.stages: dict[int, SpilledStage] = {
            number: SpilledStage(self, number, stage) for number, stage in stages.items()
        }
        self.peak_nbytes: int = 0
        self.spilled_nbytes: int = 0
        self._positions: dict[Key, list[int]] = {}
        self._order: list[tuple[str, Key]] = []
        self._position = 0
        # Bytes held on the device, and what the store has.
        self._sizes: dict[Key, int] = {}
        self._away: dict[Key, _Kept] = {}
        # (stage, kind) -> how much more an action left than it found, at most.
        self._growth: dict[tuple[int, str], int] = {}

    def follow(self, plan: Plan, rank: int) -> None:
        """From the next iteration on, the stages run their part of `plan` on `rank`."""
        self._order = [(kind, (action.stage, action.microbatch)) for action in plan.ranks[rank] for kind in action.kind]
        self._positions = {}
        for position, (_, key) in enumerate(self._order):
            self._positions.setdefault(key, []).append(position)

    def begin(self) -> None:
        """An iteration begins."""
        self._position = 0

    def before(self, kind: str, key: Key) -> None:
        """An action of `kind`, F, B or W, on `key`, a (stage, microbatch), is about to run.

        Raises:
            InputError: it is not the next one of the plan.
        """
        expected = self._order[self._position] if self._position < len(self._order) else None
        if (kind, key) != expected:
            following = "no more actions" if expected is None else _name(*expected)
            raise InputError(f"spill: got {_name(kind, key)}, expected {following}: `follow` the plan that is run")
        self._fetch(key)
        self._make_room(self._growth.get((key[0], kind), 0), keep=key)

    def after(self, kind: str, key: Key) -> None:
        """The action has ended.

        Raises:
            InputError: what is held for this one microbatch is more than the cap, or the store is full.
        """
        before = self._sizes.pop(key, 0)
        nbytes = sum(array.nbytes for array in distinct(self.stages[key[0]].inner.held.arrays(key[1])))
        if nbytes > self.cap_nbytes:
            raise InputError(
                f"spill: got a cap of {self.cap_nbytes} bytes, expected at least {nbytes}, "
                f"which stage {key[0]} holds for one microbatch"
            )
        if nbytes:
            self._sizes[key] = nbytes
        self._growth[key[0], kind] = max(self._growth.get((key[0], kind), 0), nbytes - before)
        self._position += 1
        self._make_room(0)
        following = self._order[self._position][1] if self._position < len(self._order) else None
        if following in self._away and self.held_nbytes + self._away[following].nbytes <= self.cap_nbytes:
            self._fetch(following)
        self.peak_nbytes = max(self.peak_nbytes, self.held_nbytes)

    def nbytes_of(self, stage: int) -> int:
        """Bytes that `stage` holds on the device."""
        return sum(nbytes for (number, _), nbytes in self._sizes.items() if number == stage)

    @property
    def kept_nbytes(self) -> int:
        """Bytes held on the device and in the store together."""
        return self.held_nbytes + sum(kept.nbytes for kept in self._away.values())

    @property
    def room_nbytes(self) -> int:
        """How many of them to plan for: arrays of several sizes fill a store before all of it is in use."""
        return self.cap_nbytes + self.store.nbytes // 2

    @property
    def held_nbytes(self) -> int:
        """Bytes held on the device by all stages."""
        return sum(self._sizes.values())

    def _make_room(self, nbytes: int, keep: Key | None = None) -> None:
        """Spill what is needed last, but for `keep`, until `nbytes` more fit, or nothing is left to spill."""
        while self.held_nbytes + nbytes > self.cap_nbytes:
            victims = [key for key in self._sizes if key != keep]
            if not victims:
                return
            self._spill(max(victims, key=self._next_use))

    def _next_use(self, key: Key) -> float:
        positions = self._positions[key]
        index = bisect_left(positions, self._position)
        return positions[index] if index < len(positions) else math.inf

    def _spill(self, key: Key) -> None:
        nbytes = self._sizes.pop(key)
        slots: dict[Identity, Slot] = {}

        def away(array: StageArray) -> ArrayPlace:
            place = ArrayPlace.of(array)
            if place.identity not in slots:
                slots[place.identity] = self.store.put(place.dense(array))
            return place

        self.stages[key[0]].inner.held.set_aside(key[1], away)
        self._away[key] = _Kept(slots, nbytes)
        self.spilled_nbytes += nbytes

    def _fetch(self, key: Key) -> None:
        kept = self._away.pop(key, None)
        if kept is None:
            return
        self._make_room(kept.nbytes, keep=key)
        back: dict[Identity, StageArray] = {}

        def here(place: ArrayPlace) -> StageArray:
            if place.identity not in back:
                back[place.identity] = self.store.take(kept.slots[place.identity])
            return place.laid(back[place.identity])

        self.stages[key[0]].inner.held.bring_back(key[1], here)
        self._sizes[key] = kept.nbytes


@dataclass(frozen=True)
class _Kept:
    """What the store has of a microbatch: identity -> slot; and how many bytes it held on the device."""

    slots: dict[Identity, Slot]
    nbytes: int


@dataclass(frozen=True)
class ArrayPlace:
    """How an array lies in memory: its `identity`; its axes in their order there, with the shape that they have then;
    and the axes that lead back.
    """

    identity: Identity
    order: tuple[int, ...]
    shape: tuple[int, ...]
    back: tuple[int, ...]

    @classmethod
    def of(cls, array: StageArray) -> "ArrayPlace":
        """The ArrayPlace of `array`, of host or device."""
        order = tuple(sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis])))
        dense = array.transpose(order)
        identity: Identity = (address_of(array), array.nbytes)
        if not dense.flags.c_contiguous:
            identity = (*identity, array.shape, array.strides)
        return cls(identity, order, dense.shape, tuple(order.index(axis) for axis in range(array.ndim)))

    def dense(self, array: StageArray) -> StageArray:
        """The bytes of `array` as they lie, contiguous: one axis, of its dtype; a copy only where there are gaps."""
        flat = array.transpose(self.order).reshape(-1)
        return flat if flat.flags.c_contiguous else flat.copy()

    def laid(self, dense: StageArray) -> StageArray:
        """The array that `dense` came from."""
        return dense.reshape(self.shape).transpose(self.back)


class SpilledStage(WrappedStage):
    """Stage whose rank spills; see Spill."""

    inner: LayerStage

    def __init__(self, spill: Spill, number: int, inner: LayerStage) -> None:
        super().__init__(inner)
        self._spill = spill
        self._number = number

    def begin(self, microbatches: int, inputs: Samples = None, targets: Samples = None) -> None:
        self._spill.begin()
        super().begin(microbatches, inputs, targets)

    def around(self, kind: str, work: Callable[..., Result], microbatch: int, *args: Any) -> Result:
        key = self._number, microbatch
        self._spill.before(kind, key)
        result = work(microbatch, *args)
        self._spill.after(kind, key)
        return result

    @property
    def nbytes_held(self) -> int:
        return self._spill.nbytes_of(self._number)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class HostStore:
    """Arrays of the host in shared, bounded memory of their own, copied when they come and when they go.

    Args:
        nbytes: at most so many.

    Attributes: `nbytes`; `used_nbytes`.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._arena = Arena(nbytes, ROOM, ALIGN)

    @property
    def used_nbytes(self) -> int:
        return self._arena.used_nbytes

    def put(self, array: StageArray) -> Slot:
        """Store a copy of the contiguous `array` (count,); returns its slot. Raises InputError if the store is full."""
        offset = self._arena.allocate(array.nbytes)
        self._bytes(offset, array.nbytes)[:] = array.view(np.uint8)
        return offset, array.size, array.dtype

    def take(self, slot: Slot) -> NDArray[Any]:
        """The array of a slot, in memory of its own; the slot is free again."""
        offset, count, dtype = slot
        array = np.empty(count, dtype)
        array.view(np.uint8)[:] = self._bytes(offset, array.nbytes)
        self._arena.free(offset, array.nbytes)
        return array

    def _bytes(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        return np.frombuffer(self._arena.view, np.uint8, nbytes, offset)

    def close(self) -> None:
        self._arena.close()


class DeviceStore:
    """Arrays of a device in pinned memory of the host, copied asynchronously; the computing stream is not held back by
    what goes, and by what comes only until it is there. Not measured on a GPU yet.

    Args:
        runtime: a CudaRuntime.
        xp: the array module, cupy.
        nbytes: of pinned memory, at most.
    """

    def __init__(self, runtime: CudaRuntime, xp: Any, nbytes: int) -> None:
        self.nbytes = nbytes
        self._runtime = runtime
        self._xp = xp
        self._arena = Arena(nbytes, ROOM, ALIGN)
        self._bytes = np.frombuffer(self._arena.view, np.uint8)
        runtime.pin(self._bytes.ctypes.data, nbytes)
        self._stager = Stager(runtime)
        # Copies under way: offset -> (copy, the array that it reads); (copy, offset, nbytes) of a slot that it empties.
        self._going: dict[int, tuple[Copy, StageArray]] = {}
        self._coming: list[tuple[Copy, int, int]] = []

    @property
    def used_nbytes(self) -> int:
        return self._arena.used_nbytes

    def put(self, array: StageArray) -> Slot:
        """As HostStore.put; `array` is kept until its copy has ended."""
        self._settle()
        offset = self._arena.allocate(array.nbytes)
        host = self._bytes[offset : offset + array.nbytes]
        self._going[offset] = self._stager.to_host(host, address_of(array)), array
        return offset, array.size, array.dtype

    def take(self, slot: Slot) -> StageArray:
        """As HostStore.take; work given to the current stream from now on finds the array whole."""
        offset, count, dtype = slot
        array = self._xp.empty(count, dtype)
        stream = self._runtime.current_stream()
        if offset in self._going:
            self._going[offset][0].hold(stream)  # before it can come back it must have gone
        copy = self._stager.to_device(address_of(array), self._bytes[offset : offset + array.nbytes])
        copy.hold(stream)
        self._coming.append((copy, offset, array.nbytes))
        return array

    def _settle(self) -> None:
        """Let go of what copies that have ended needed."""
        self._going = {offset: entry for offset, entry in self._going.items() if not entry[0].test()}
        coming, self._coming = self._coming, []
        for copy, offset, nbytes in coming:
            # Asked once: it may end between two questions.
            if copy.test():
                self._arena.free(offset, nbytes)
            else:
                self._coming.append((copy, offset, nbytes))

    def close(self) -> None:
        """Release the memory, once no copy uses it.

        Raises:
            TransportTimeout: one does not end; the memory stays.
        """
        copies = [copy for copy, _ in self._going.values()] + [copy for copy, _, _ in self._coming]
        wait_for(lambda: all(copy.test() for copy in copies), "copies of spilled activations", CLOSE_S)
        self._runtime.unpin(self._bytes.ctypes.data)
        self._arena.close()


def _name(kind: str, key: Key) -> str:
    return f"{kind}{key[0]}.{key[1]}"


def distinct(arrays: Iterable[StageArray]) -> Collection[StageArray]:
    """`arrays` without those that are the same memory as one before."""
    return {(address_of(array), array.nbytes): array for array in arrays}.values()
