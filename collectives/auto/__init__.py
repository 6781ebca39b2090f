"""collectives/auto."""
