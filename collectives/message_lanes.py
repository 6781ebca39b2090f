"""Lanes of a communicator: each owner of messages has its own, so that none receives the messages of another.

A tag of the user is a lane of USER_LANES, or one of the upper half of what the transport has.
"""

from enum import IntEnum, auto

CONTROL_LANE, AGREEMENT_LANE = range(2)
USER_LANES = range(2, 34)
# Of a mailbox.
HEADER_LANE, DATA_LANE = range(34, 36)
# One per signature. Calls that find out which rank is late have one each, by their number: several are under way at
# once, and ranks begin them in orders of their own.
PLAN_LANES, BOARD_LANES = range(64, 192), range(192, 256)


class Lane(IntEnum):
    """The lanes of lanterne's own messages, given as `tag` of a communicator's send and recv.

    They lie between the lanes of the mailbox and PLAN_LANES, in this order.
    """

    @staticmethod
    def _generate_next_value_(_name: str, _start: int, count: int, _last: list[int]) -> int:
        return DATA_LANE + 1 + count

    PIPELINE = auto()
    CLOCKS = auto()
    ADAPT_REPORT = auto()
    ADAPT_VERDICT = auto()
    STATE = auto()
    HANDOVER = auto()
    REPLICA = auto()
    PROBE_HEAD = auto()
    PROBE_DATA = auto()
    PROBE_READY = auto()
    PROBE_BARRIER = auto()
    LINK_MESSAGE = auto()
    LINK_ARRIVAL = auto()
