"""bench/demo."""
