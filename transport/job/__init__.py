"""This folder holds how jobs begin and end: processes, signals, environment variables and the start of the store.

`launch` starts N ranks on this host and watches them (`launch`, `find_mpiexec`); `guard` is the parent process of each
rank; `bootstrap` finds the job that this process belongs to (`connect`, `in_a_job`, `launched_rank`).
"""
