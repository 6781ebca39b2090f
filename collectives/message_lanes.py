"""Lanes of a communicator: each owner of messages has its own, so that none receives the messages of another.

A tag of the user is a lane of USER_LANES, or one of the upper half of what the transport has.
"""

from enum import IntEnum

CONTROL_LANE, AGREEMENT_LANE = range(2)
USER_LANES = range(2, 34)
# Of a mailbox.
HEADER_LANE, DATA_LANE = range(34, 36)
# One per signature. Calls that find out which rank is late have one each, by their number: several are under way at
# once, and ranks begin them in orders of their own.
PLAN_LANES, BOARD_LANES = range(64, 192), range(192, 256)

# The lanes of lanterne's own messages, given as `tag` of a communicator's send and recv.
Lane = IntEnum(
    "Lane",
    [
        "PIPELINE",
        "CLOCKS",
        "ADAPT_REPORT",
        "ADAPT_VERDICT",
        "STATE",
        "REPLICA",
        "PROBE_HEAD",
        "PROBE_DATA",
        "PROBE_READY",
        "PROBE_BARRIER",
        "LINK_MESSAGE",
        "LINK_ARRIVAL",
    ],
    start=DATA_LANE + 1,
)
