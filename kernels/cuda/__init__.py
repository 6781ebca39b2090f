"""This folder holds the kernels and verbs of CUDA devices: reductions in CUDA C (`source`, `compile`) and in Numba
(`numba_kernels`, `lanes`), their checks and launches (`reduce_on_device`), delays (`spin`), views of foreign memory
(`device_view`), streams, copies, events and flags (`runtime`), and what a kernel takes of a multiprocessor, told
without one (`occupancy`). It needs CuPy and a driver once something runs; importing it needs neither. Others import
`runtime.CudaRuntime`, `own_device` and `runtime_of`, `device_view`, `spin`, `reduce_on_device` and `occupancy`.
"""
