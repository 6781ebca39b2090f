"""Evidence that a rank, link, host or the data is slow, and the rule that names the rank that others wait for.

- `series.py`: the level and the noise of a series, one value at a time; `persistence.py`: whether a change persists.
  The detector and the blame of late ranks use them.
- `comparison.py`: which of several places is slower than its peers over steps.
- `progress.py`: one model of a rank's progress in a group, and one rule that says which rank is behind. Every source of
  calls feeds it: Flight Recorder dumps, RAS counts, call logs, and the calls of a running job.
"""
