"""bench/lab."""
