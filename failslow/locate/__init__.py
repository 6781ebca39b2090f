"""This folder holds the search of a recorded trace of training steps for what makes them long, by replays.

It reads trace files (CSV, JSON, parquet) and is otherwise pure; NumPy loads on first use, pyarrow for parquet only.
Others import `read_trace` and `build_trace` (trace.py), and `locate` and `Verdict` (locate.py).
"""
