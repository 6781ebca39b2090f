"""failslow/validate."""
