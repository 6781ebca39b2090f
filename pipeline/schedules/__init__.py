"""This folder holds the schedules that need no planning: one file each, a pure function from a `Problem` to a `Plan`.
Others get them by name from `lanterne.pipeline.planners.schedulers`. `warmup` is the shape that several of them share.
"""
