"""This folder holds the store: a process where a job's ranks meet, keep small values, and learn which of them died.

Others import StoreClient of `client`, StoreProcess of `process`, Terms of `terms`; `follow` and `redis_lease` find the
store where it may change its host. `server` is the process; `values`, `membership/` and `board_handler` are
its services, made as `handler` says; `decision_log` is what outlives it. The frames are in `transport/wire.py`.
"""
