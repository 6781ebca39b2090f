"""pipeline/simulate."""
