"""Lanes of a communicator: every owner of messages has its own, so that none receives what another one sent.

A tag of the user's is a lane of USER_LANES, or one of the upper half of what the transport has.
"""

from enum import IntEnum, unique

CONTROL_LANE, AGREEMENT_LANE = 0, 1
USER_LANES = range(2, 34)
# Of a mailbox.
HEADER_LANE, DATA_LANE = 34, 35
# One per signature. Calls that find out which rank is late have one each, by their number: several are under way at
# once, and ranks begin them in orders of their own.
PLAN_LANES, BOARD_LANES = range(64, 192), range(192, 256)


@unique
class Lane(IntEnum):
    """The lanes of lanterne's own messages, given as `tag` of a communicator's send and recv.

    They lie between the lanes of the mailbox and PLAN_LANES.
    """

    PIPELINE = 36
    CLOCKS = 37
    ADAPT_REPORT = 38
    ADAPT_VERDICT = 39
    STATE = 40
    HANDOVER = 41
    REPLICA = 42
    GATHER = 43
    PROBE_HEAD = 44
    PROBE_DATA = 45
    PROBE_READY = 46
    PROBE_BARRIER = 47
    LINK_MESSAGE = 48
    LINK_ARRIVAL = 49
