"""This folder holds pipelines: plans as data, what checks, prices and makes them, and what runs them.

Pure: `plan` (Problem, Action, Plan, placements), `schedules` and `planners` (a Problem to a Plan), `simulate` (the
checker and the simulator). On ranks: `model` (layers and stages in array code), `device` (GPUs under stages), `planes`
(how messages go), `execute` (one iteration of a plan), `train` (a Trainer, its state) and `adapt` (new plans for what
is measured). Others import a folder's modules, as its own docstring lists them; nothing is imported from here.
"""
