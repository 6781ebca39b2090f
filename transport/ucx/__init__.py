"""transport/ucx."""
