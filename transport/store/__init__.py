"""This folder holds the store: a process where a job's ranks meet, keep small values, and learn who died.

Others import StoreClient of `client`, StoreProcess of `process` and Terms of `terms`. `server` is that process;
`values`, `membership/` and `board_handler` are its services, made as `handler` says; `heirs` with its `fellows` and
`succession` decide which store leads. The language of both ends is in `transport/wire.py`.
"""
