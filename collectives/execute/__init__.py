"""This folder holds what runs a checked schedule on one rank: compiled to a program, then moved by messages or streams.

`communicator_base` is what a communicator's parts share, with its `place` in the job; `arguments` and `plans` lead from
a call to its program, `compile_program` makes that (pure, with `messages`, `rank_program` and `stream_program`),
`executor` and `stream_execution` run it, `requests` are waited for. It posts on transports and, where arrays are on a
device, uses CUDA. Others import `requests` and `control.STALL_S`; benchmarks also `native` and
`compile_program`.
"""
