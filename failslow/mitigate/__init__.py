"""failslow/mitigate."""
