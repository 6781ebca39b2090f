"""This folder holds training by pipeline, data and tensor parallelism: it sends messages; `checkpoint` writes files.

Others may import `trainer` (Trainer, its Iteration, and plans, which makes a plan for each copy of a pipeline), `adam`,
`state` (the TrainingState, and moving it between ranks), `checkpoint` (saves and loads it) and `rank_layout` (Layout,
which rank has which part).
"""
