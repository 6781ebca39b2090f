"""This folder holds the transport over MPI, through mpi4py, which is loaded when one is opened.

Others import MpiTransport and `load_mpi` of `transport`, and of `library` what this process's MPI can do with device
memory and what MPICH leaves behind in /dev/shm.
"""
