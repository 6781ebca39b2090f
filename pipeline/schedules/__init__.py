"""Static schedules: one file each, a pure function from a Problem to a plan."""
