"""failslow/locate."""
