"""bench/failslow."""
