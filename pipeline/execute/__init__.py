"""pipeline/execute."""
