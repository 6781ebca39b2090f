"""This folder holds `./run evaluate gpu`, and the session that runs all GPU tests and figures within minutes.

`kernel_table` compiles the kernels and reports what they take of a multiprocessor (`occupancy`), without a GPU.
`figures` measures in this process, `ranks` and `emulated_links` on ranks over NCCL; `session` starts a process for each
step and needs neither a GPU nor MPI itself. Only tests import from here.
"""
