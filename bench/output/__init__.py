"""bench/output."""
