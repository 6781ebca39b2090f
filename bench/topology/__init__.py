"""This folder holds what is told of clusters: `command` is `lanterne study` (`outcomes`: an algorithm on a topology,
`positions` of a late rank, `outcome_plot`), `found` is `lanterne info --topology`.
"""
