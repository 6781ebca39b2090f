"""bench/papers/crosspipe."""
