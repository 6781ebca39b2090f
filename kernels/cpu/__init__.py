"""This folder holds the kernels of the host: the LLVM IR of reductions (`fold_ir`), their compiler (`jit`), and waiting
for a given time (`delay`). It touches no file and no device. Others import `delay`; reductions are called through
`lanterne.kernels.reduce`.
"""
