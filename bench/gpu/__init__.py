"""This folder holds `lanterne bench gpu` and the session that runs all GPU tests and figures in minutes. figures measures
in this process, ranks and emulated_links on ranks over NCCL; session starts a process for each step and needs neither a
GPU nor MPI itself. Others may import figures and session for their tests.
"""
