"""transport/rails."""
