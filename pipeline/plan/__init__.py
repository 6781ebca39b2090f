"""pipeline/plan."""
