"""bench/pipeline."""
