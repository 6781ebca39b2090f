"""Where the ranks of a new group meet: a store of torch's in which there may be what earlier groups have left.

torchrun starts ranks again beside the same store, so any key may be of ranks that are dead. Each rank says hello by a
word that nobody knows yet, rank 0 answers under that word with the name of this meeting, and looks again until each has
said that it has read it: the hello that it saw first may have been a dead rank's.
"""

import secrets
from typing import Any

from lanterne.errors import TransportTimeout
from lanterne.transport.machine import THIS_MACHINE

# Between two looks at who has come: each is two questions to the store for each rank that has not.
LOOK_S = 5e-3  # a question takes some 0.1 ms


class Meeting:
    """The part of `store` that one meeting has, in which nobody has written before; see MeetingPlace.

    Attributes: `underlying_store`, as torch's own wrappers of stores name it.
    """

    def __init__(self, store: Any, name: str) -> None:
        self.underlying_store: Any = store
        self._name = name

    def set(self, key: str, value: str) -> None:
        """See MeetingPlace."""
        self.underlying_store.set(f"lanterne/{self._name}/{key}", value)

    def get(self, key: str) -> bytes:
        """See MeetingPlace."""
        found: bytes = self.underlying_store.get(f"lanterne/{self._name}/{key}")
        return found

    def has(self, key: str) -> bool:
        """Whether something is under `key` by now."""
        return bool(self.underlying_store.check([f"lanterne/{self._name}/{key}"]))


def meet(store: Any, group: str, rank: int, world_size: int, timeout_s: float) -> Meeting:
    """The meeting of the `world_size` ranks that make `group`, all of which call this at one time.

    Raises:
        TransportTimeout: on rank 0, who did not come; elsewhere what `store` raises where rank 0 does not.
    """
    hall = Meeting(store, group)
    if rank:
        word = secrets.token_hex(8)
        hall.set(f"hello/{rank}", word)
        meeting = Meeting(store, hall.get(f"answer/{word}").decode())
        meeting.set(f"came/{rank}", "")
        return meeting
    name = secrets.token_hex(8)
    meeting = Meeting(store, name)
    until_s = THIS_MACHINE.now_s() + timeout_s
    answered: set[str] = set()
    missing = list(range(1, world_size))
    while missing := [other for other in missing if not _has_come(other, hall, meeting, name, answered)]:
        if THIS_MACHINE.now_s() > until_s:
            raise TransportTimeout(f"ranks {missing} did not come within {timeout_s:g} s", missing)
        THIS_MACHINE.sleep(LOOK_S)
    return meeting


def _has_come(other: int, hall: Meeting, meeting: Meeting, name: str, answered: set[str]) -> bool:
    """Whether rank `other` is in the meeting; answers its hello where that is a new one."""
    word = hall.get(f"hello/{other}").decode() if hall.has(f"hello/{other}") else None
    # Asked after its hello was read: whoever has come may say hello to the next meeting by now.
    if meeting.has(f"came/{other}"):
        return True
    if word is not None and word not in answered:
        answered.add(word)
        hall.set(f"answer/{word}", name)
    return False
