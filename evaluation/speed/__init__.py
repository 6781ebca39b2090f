"""This folder holds commands of `lanterne bench` that time this library's own work, against bars of our own.

`schedules` and `planning` time planning and checking of collectives and pipelines, `planner_gaps` compares plans with
their bounds, `kernels` compares reductions with a plain copy (`gpu` uses it), `training` a pipeline with one process,
and `watching` measures what being watched costs; the last two start processes over MPI. Nothing else imports it.
"""
