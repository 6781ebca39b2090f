"""collectives/algorithms/late."""
