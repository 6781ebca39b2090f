"""This folder holds collectives as data, what proves, prices and runs them, and the Communicator over it all.

It communicates through transports only. Others import `communicator` (Communicator, core_of), `jobs` (init, spawn),
`execute.requests` (what is waited for), and the pure folders `schedule`, `algorithms` and `auto`; `core`, `captured`
and `point_to_point` are the Communicator's own.
"""
