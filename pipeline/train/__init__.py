"""This folder holds training by pipeline, data and tensor parallelism: it sends messages; `checkpoint` writes files.

Others may import `trainer` (Trainer, its Iteration, and plans, which makes a plan for each copy of a pipeline), `adam`,
`checkpoint` (the TrainingState, saved and loaded) and `rank_layout` (Layout, which rank has which part).
"""
