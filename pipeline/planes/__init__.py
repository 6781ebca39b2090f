"""pipeline/planes."""
