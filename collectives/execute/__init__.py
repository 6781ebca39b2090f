"""collectives/execute."""
