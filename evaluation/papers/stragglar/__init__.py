"""This folder holds the experiments of the StragglAR paper: all-reduces in which one rank comes late.

Each module is one figure or table, found through `papers.experiment`. All is simulated by the alpha-beta model, with
3 us a message as the paper has it, or computed from the log that the paper's authors published; `lanterne bench
persistence` and `bench all_reduce --late-rank` measure.
"""
