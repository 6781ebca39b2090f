"""bench/rails."""
