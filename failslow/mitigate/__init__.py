"""This folder holds what is done about slow ranks and links while a job trains, and when: strategies S1 to S4.

All but closed_loop.py (ranks, over communicators) and loop_state.py (the job's store, or Redis) is pure. Others import
`ClosedLoop` and `observed` (closed_loop.py), `ControllerSettings` (decision.py), `RedisState` (loop_state.py),
`Arrangement`, `Forecaster` and `Slowness` (strategies.py), `rebalance` and `gradient_weights` (rebalance.py), and
`consolidate` (grid.py), and `TrainingStatus` (training_status.py).
"""
