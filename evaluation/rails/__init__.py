"""This folder holds the benchmarks of delegates and of paths that die: they start processes and break connections.

Tests may import `rail_faults`, which breaks rails from outside; the rest is for the command line alone.
"""
