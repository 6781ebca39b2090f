"""This folder holds the experiments of the ADAPTRA paper: slow links in pipelines, delegates, plans that adapt.

Each module is one figure, found through `papers.experiment`. Most run processes whose stages wait as long as told, over
emulated links; figures 8, 19 and 21, h800 and fixed_setting only plan and simulate.
"""
