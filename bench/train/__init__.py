"""bench/train."""
