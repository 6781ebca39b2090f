"""failslow/record."""
