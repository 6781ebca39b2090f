"""bench/papers/greyhound."""
