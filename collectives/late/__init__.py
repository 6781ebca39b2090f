"""This folder holds the ranks' side of calls that find out by themselves who is late, and what is known of past ones.

`calls` asks the arrival board (transport/board) and runs what its record says; others import `arrivals.Arrivals`.
"""
