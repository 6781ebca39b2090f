"""This folder holds the experiments of the GREYHOUND paper: finding what makes training slow, and mitigating it.

Each module is one figure or table, found through `papers.experiment`. Most run jobs that train and are slowed on
purpose; tables 3 to 5 only compute.
"""
