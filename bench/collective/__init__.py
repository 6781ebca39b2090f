"""This folder holds the commands about collectives: bench, bench p2p, kernels and mpi, schedule, and cost.

Those of bench measure on ranks that they start, over MPI, UCX or NCCL; schedule and cost are pure but for their files.
Others may import `measure` (a benchmarked call, an agreed start), `kernels` (comparisons of reductions, for bench gpu),
`settings.known_rate_bytes_per_s` and `emulated.emulated`.
"""
