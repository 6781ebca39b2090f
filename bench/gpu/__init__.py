"""bench/gpu."""
