"""This folder holds what computes on a rank's own memory: reductions, staged copies between device and host, delays and
matrix products, on the CPU (compiled with llvmlite) and on CUDA devices (CuPy, Numba CUDA). It sends nothing, starts no
process and writes no file; CuPy is imported once a device is asked for. Others import `arrays` (the types of arrays and
streams, and how foreign arrays are adopted), `dtypes`, `reduce`, `staging`, `chunks` (without NumPy, for delegate
processes), `gemm`, and the modules of `cpu` and `cuda` that those two name.
"""
