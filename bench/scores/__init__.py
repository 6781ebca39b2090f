"""This folder holds what redoes our own figures: scores of detectors, localization, validation and the closed loop.

`detector.score`, `detector.update_cost`, `locate_score`, `loop_score`, `validate_score` and `peers.ddp_deaths` are
programs (`python -m`): the first three only compute and the others run jobs of processes; `persistence`, `deaths` and
the modules of `speed`, `peers` and `gpu` are commands of `lanterne bench`; `figures` counts what this repository
consists of. Experiments in `papers` import from `detector` and `mitigation_job`; tests also `trace_jobs`. It is not in
the wheel, and no other folder of the package imports it.
"""
