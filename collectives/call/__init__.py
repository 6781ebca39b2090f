"""This folder holds what the arguments of a call say of its arrays: how many elements (`sizes`), which memory
(`memory`).

It knows no communicator and moves nothing between ranks. `collectives/execute` imports it.
"""
