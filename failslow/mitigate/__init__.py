"""This folder holds what is done about slow ranks and links while a job trains, and when: strategies S1 to S4.

closed_loop.py and observation.py talk to the ranks; all else is pure. Others import
`ClosedLoop` and `observed` (closed_loop.py), `ControllerSettings` (decision.py), `Arrangement`, `Forecaster` and
`Slowness` (strategies.py), `rebalance` and `gradient_weights` (rebalance.py), `consolidate` (grid.py) and
`TrainingStatus` (training_status.py).
"""
