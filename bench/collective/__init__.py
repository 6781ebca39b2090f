"""bench/collective."""
