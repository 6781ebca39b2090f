"""Collectives of ranks of one host through memory that they share: no messages, no schedule; the algorithm "shared".

`memory` is that memory and how the ranks meet in it; `pieces` says what each of them copies and folds, as data; `calls`
runs that. The Communicator's core imports them.
"""
