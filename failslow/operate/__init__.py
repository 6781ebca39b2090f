"""This folder holds what operators plug in: metrics, the page, the history by host, and what a host tells of itself.

All of it is made of one document, the status of a job (job_ledger.py of `record` makes that of a watched job,
training_status.py of `mitigate` that of training that mitigates): `metrics` for Prometheus and OpenTelemetry, `page`
for people. Others import `Publisher` (publisher.py), `StatusServer` and `parse_address` (status_server.py),
`open_history` and `patterns` (history.py), `HostTelemetry` and `changes` (telemetry.py), `Thresholds` and
`ThresholdFile` (thresholds.py).
Standard library only.
"""
