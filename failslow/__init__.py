"""This folder holds the answer to fail-slow: `detect` slow iterations of a job from what `record` saw of its calls.

Then `locate` (from a trace) or `validate` (by measuring) tells which rank or link it is, and `mitigate` decides what to
do about it, and does it; `operate` tells operators. Other folders import from the modules that the six folders name.
"""
