"""failslow/detect."""
