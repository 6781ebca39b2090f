"""transport/store."""
