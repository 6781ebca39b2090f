"""This folder holds the kernels and verbs of CUDA devices.

Reductions are in CUDA C (`source`, `compile`) and in Numba (`numba_kernels`, `lanes`); `reduce_on_device` checks and
launches them. `spin` makes delays, `device_view` views of foreign memory, `runtime` streams, copies, events and flags.
It needs CuPy and a driver once something runs; importing it needs neither. Others import `runtime.CudaRuntime`,
`own_device` and `runtime_of`, `device_view`, `spin` and `reduce_on_device`.
"""
