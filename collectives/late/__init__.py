"""This folder holds the ranks' side of calls that find out by themselves who is late, and what is known of past ones.

`calls` asks the arrival board (transport/board) and runs what its record says, one of the `options` that were priced
before; others import `arrivals.Arrivals`.
"""
