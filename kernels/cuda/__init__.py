"""kernels/cuda."""
