"""pipeline/planners."""
