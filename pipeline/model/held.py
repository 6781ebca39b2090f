"""What a stage holds of the microbatches under way: what their layers keep between F, B and W."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from lanterne.errors import InputError
from lanterne.kernels.arrays import address_of
from lanterne.pipeline.model.layer import Array, Kept


@dataclass(slots=True)
class HeldMicrobatch:
    """What is held for one: an entry per layer and one for the loss, and what a part hands to the next.

    `state` is the kind that comes next; `passed` counts the layers that B has passed.
    """

    entries: list[Kept]
    carried: Any = None
    state: str = "F"
    passed: int = 0


class HeldMicrobatches:
    """The microbatches that a stage holds, and those that are set aside elsewhere until their B."""

    def __init__(self) -> None:
        self._held: dict[int, HeldMicrobatch] = {}
        self._aside: dict[int, HeldMicrobatch] = {}

    @property
    def numbers(self) -> list[int]:
        """The microbatches whose F has begun and whose W has not ended, ascending."""
        return sorted((*self._held, *self._aside))

    @property
    def nbytes(self) -> int:
        """Bytes of what is held and not set aside; memory that several layers hold counts once."""
        arrays = {}
        for microbatch in self._held:
            for array in self.arrays(microbatch):
                arrays[address_of(array), array.nbytes] = array.nbytes
        return sum(arrays.values())

    def begin(self, microbatch: int, num_layers: int, x: Any) -> None:
        """Hold a microbatch, with the input of its F.

        Raises:
            InputError: it is held already.
        """
        if microbatch in self._held or microbatch in self._aside:
            raise InputError(f"F of microbatch {microbatch}: it is held already, expected its W before")
        self._held[microbatch] = HeldMicrobatch([None] * (num_layers + 1), x)

    def find(self, microbatch: int) -> HeldMicrobatch | None:
        """What is held of a microbatch; None if nothing is."""
        return self._held.get(microbatch)

    def waiting(self, microbatch: int, kind: str) -> HeldMicrobatch:
        """What is held of a microbatch whose next action is `kind`.

        Raises:
            InputError: it is not.
        """
        held = self._held.get(microbatch)
        if held is None or held.state != kind:
            got = "is not held" if held is None else f"waits for its {held.state}"
            raise InputError(f"{kind} of microbatch {microbatch}: it {got}, expected F, B and W in this order")
        return held

    def end(self, microbatch: int) -> None:
        """A microbatch has had its W."""
        del self._held[microbatch]

    def arrays(self, microbatch: int) -> list[Array]:
        """The arrays held for a microbatch; some may share memory."""
        held = self._held.get(microbatch)
        return [] if held is None else list(_arrays((held.entries, held.carried)))

    def set_aside(self, microbatch: int, replace: Callable[[Array], object]) -> None:
        """Hold replace(array), anything, in place of each array held for a microbatch, until it is brought back."""
        self._move(microbatch, self._held, self._aside, replace)

    def bring_back(self, microbatch: int, replace: Callable[[Any], Array]) -> None:
        """Hold the array replace(x) in place of each x that `set_aside` put there."""
        self._move(microbatch, self._aside, self._held, replace)

    def _move(
        self,
        microbatch: int,
        source: dict[int, HeldMicrobatch],
        target: dict[int, HeldMicrobatch],
        replace: Callable[[Any], Any],
    ) -> None:
        held = source.pop(microbatch)
        held.entries, held.carried = _replaced([held.entries, held.carried], replace)
        target[microbatch] = held


def _arrays(held: Kept) -> Iterator[Array]:
    """The arrays in nested lists and tuples."""
    if isinstance(held, (list, tuple)):
        for item in held:
            yield from _arrays(item)
    elif held is not None:
        yield held


def _replaced(held: Kept, replace: Callable[[Any], Any]) -> Kept:
    """`held` with replace(array) for each array in its lists and tuples."""
    if isinstance(held, (list, tuple)):
        return type(held)(_replaced(item, replace) for item in held)
    return None if held is None else replace(held)
