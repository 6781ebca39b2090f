"""One file an algorithm: pure functions that return a CollectiveSchedule."""
