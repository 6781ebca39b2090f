"""This folder holds what records a running job's communication calls, and what reads the records while it runs.

Records go through files that two processes map; recorder.py and adapters.py load into programs that know nothing of
lanterne, so they use the standard library only. Others import `watch` (watch.py, the front door), `Reader` (watch.py),
`JobLog` (job_log.py), `Recorder` (recorder.py), `watch_communicator` and `start` (adapters.py), and `PeriodTracker`
(period.py).
"""
