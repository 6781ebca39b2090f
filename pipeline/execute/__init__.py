"""This folder holds what runs a checked plan on the ranks of a communicator: it sends messages and starts no process.

Others may import `stage` (the class Stage that says what an action computes, and its array types), `execute` (the
function execute and Measured, what one rank did), `measured` (all ranks' Measured put together, as a Timeline) and
`stage_timed` (a stage that only waits).
"""
