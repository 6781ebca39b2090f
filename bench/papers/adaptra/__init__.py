"""bench/papers/adaptra."""
