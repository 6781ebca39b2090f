"""This folder holds the transport over UCX, through ucxx, loaded when one is opened; it needs neither MPI nor a GPU.

`transport` has UcxTransport; `worker` has the library, its settings and their reasons (`load_ucxx`).
"""
