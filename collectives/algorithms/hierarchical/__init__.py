"""This folder holds collectives over nodes of several ranks: `compose` makes all-reduces of a schedule of nodes, and
`all_reduce` says of which (`leaves`: where some have slow NICs); `spread` has the collectives that move or sum parts.
"""
