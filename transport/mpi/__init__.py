"""transport/mpi."""
