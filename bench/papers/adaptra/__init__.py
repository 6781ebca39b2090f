"""This folder holds the experiments of the ADAPTRA paper: slow links in pipelines, delegates, plans that adapt.

Each module is one figure, found through `papers.experiment`. Most run processes whose stages wait as long as told, over
emulated links; figures 19 and 21 only plan and simulate.
"""
