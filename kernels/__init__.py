"""Device code: reductions, staged host copies and delays, for CPU (Numba) and GPU (CuPy, Numba CUDA)."""
