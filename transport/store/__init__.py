"""This folder holds the store: a process where a job's ranks meet, keep small values, and learn who died.

Others import StoreClient of `client`, StoreProcess of `process` and Terms of `terms`. `server` is that process;
`values`, `members` (with `epoch`, its `meetings`, and `admissions`) and `board_handler` are its services, made as
`handler` says. The language of both ends is in `transport/wire.py`.
"""
