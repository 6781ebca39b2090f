"""collectives/schedule."""
