"""pipeline/adapt."""
