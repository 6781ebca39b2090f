"""transport/board."""
