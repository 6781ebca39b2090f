"""This folder holds the kernels and verbs of CUDA devices: reductions in CUDA C (`source`, `compile`) and in Numba
(`numba_kernels`, `lanes`), their checks and launches (`reduce`), delays (`delay`), views of foreign memory
(`device_view`), and streams, copies, events and flags (`runtime`). It needs CuPy and a driver once something runs;
importing it needs neither. Others import `runtime.CudaRuntime`, `own_device` and `runtime_of`, `device_view`, `delay`
and `reduce`.
"""
