"""collectives/late."""
