"""Collectives of ranks of one host through memory that they share: no messages, no schedule; the algorithm "shared".

`shared_memory` is that memory and how the ranks meet in it; `pieces` says what each of them copies and folds, as data;
`shared_calls` has it run by one compiled loop (kernels/cpu/meet.py). The Communicator's core imports them.
"""
