"""bench/scores."""
