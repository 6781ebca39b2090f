"""Pipelines as data: actions, plans, one checker, one simulator, the planners and one executor."""
