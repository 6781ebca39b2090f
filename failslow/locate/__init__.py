"""This folder holds the search of what was recorded of a job for what makes it slow or hang, by replays.

It reads trace files (CSV, JSON, parquet) and what clusters write (`formats/`), and is otherwise pure; NumPy loads on
first use, pyarrow for parquet only. Others import `read_trace` and `build_trace` (trace.py), `locate` and `Verdict`
(locate.py), `read_folder` (formats/folder.py) and `diagnose` (calls_verdicts.py).
"""
