"""This folder holds the store: a process where a job's ranks meet, keep small values, and learn who died.

Others import StoreClient of `client` and StoreProcess of `process`. `server` is that process; `values`, `members`,
`meetings` and `board_handler` are its services, made as `handler` says. The language of both ends is in
`transport/wire.py`.
"""
