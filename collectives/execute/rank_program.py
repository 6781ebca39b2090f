"""What one rank does in one collective call: a flat list of actions and what each waits for. Pure data.

Places are (buffer, offset in bytes): the user's input and output arrays, and scratch. An action starts once `waits`
events have happened; each action that finishes is one event for its `successors`, and each message that is posted is
one for `next_post`, the next message with the same peer in the same direction, so that both ends post a pair's messages
in the same order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

IN, OUT, SCRATCH = 0, 1, 2


class BufferPlace(NamedTuple):
    """`offset` bytes into one of the three buffers."""

    buffer: int
    offset: int


class Message(NamedTuple):
    """Send `nbytes` from `place` to rank `peer`, or receive them there from it."""

    sends: bool
    peer: int
    place: BufferPlace
    nbytes: int


class Fold(NamedTuple):
    """out = inputs[0] op inputs[1] op ..., over so many elements; then divided by world_size where `divides` (mean)."""

    out: BufferPlace
    inputs: tuple[BufferPlace, ...]
    num_elements: int
    divides: bool


class Move(NamedTuple):
    """Copy `nbytes` from `source` to `target`, both local."""

    target: BufferPlace
    source: BufferPlace
    nbytes: int


Action: TypeAlias = Message | Fold | Move


@dataclass(frozen=True)
class RankProgram:
    """The actions of one rank.

    Attributes:
        actions: in the order of the rounds.
        waits: per action, how many events it waits for.
        successors: per action, the actions that wait for its completion.
        next_post: per action, the message that waits for this one to be posted, or -1.
        in_count, out_count: elements of the user's arrays.
        scratch_nbytes: bytes of scratch.
        batches: where each (round, segment) begins among the actions, and what follows the last.
        join_start: the first action of phase "join", which needs the late rank; the number of actions if there is none.
    """

    actions: tuple[Action, ...]
    waits: tuple[int, ...]
    successors: tuple[tuple[int, ...], ...]
    next_post: tuple[int, ...]
    in_count: int
    out_count: int
    scratch_nbytes: int
    batches: tuple[int, ...]
    join_start: int

    def with_peers(self, rank_of: Sequence[int]) -> "RankProgram":
        """The same with rank `rank_of[p]` in the place of peer p. Cost: 0.5 us an action."""
        actions = tuple(
            Message(action.sends, rank_of[action.peer], action.place, action.nbytes)
            if type(action) is Message
            else action
            for action in self.actions
        )
        return replace(self, actions=actions)
