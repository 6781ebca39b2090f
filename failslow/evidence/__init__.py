"""Evidence that a rank, link, host or the data is slow, and the rule that names the rank that others wait for.

`progress.py` has one model of a rank's progress in a group and one rule that says which rank is behind. Every source of
calls feeds it: Flight Recorder dumps, RAS counts, call logs, and the calls of a running job.
"""
