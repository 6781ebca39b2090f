"""This folder reads what clusters already write of a job's calls into one table of calls (`foreign_calls.py`).

One module for each format, whose docstring names where the format is documented: `flight_recorder`, `inspector`, `ras`,
`kineto`, and `call_logs`, our own. `folder.py` (`read_folder`) tells which is which, by content. Nothing in a file is
ever executed; what cannot be used is counted and named, the rest is used. Others import `read_folder` and `CallTable`.
"""
