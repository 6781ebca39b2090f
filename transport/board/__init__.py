"""This folder holds the arrival board: who has come to which call, and what all ranks then do about a late one.

`late_policy` and `sequencer` are pure: no clock, no input or output. `seat` has what a rank tells a board and hears
from it, over the store's connection or, between threads, in memory. Others import `late_policy`, the `sequencer`'s
records and verdicts, and of `seat` the protocol Seat.
"""
