"""This folder holds the experiments of the CrossPipe paper: pipelines across datacenters.

Each module is one figure or table, found through `papers.experiment`. Figures 11 and 17 run processes over emulated
links; the others only plan, solve and simulate.
"""
