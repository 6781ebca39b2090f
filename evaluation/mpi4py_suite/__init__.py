"""mpi4py's own tests, of the archive that the lock names, with its names over a Communicator.

`./run evaluate mpi4py_suite.score` downloads, runs and counts; `shim` gives the names, `buffers` reads
mpi4py's ways to name a buffer.
"""
