"""This folder holds collectives over nodes of several ranks: `compose` makes them of a schedule of nodes, and
`all_reduce` says of which.
"""
