"""This folder holds the transport over NCCL, through CuPy, which is loaded when one is opened; it needs a GPU.

`transport` has NcclTransport; `channel` one communicator on a stream (NcclChannel); `watchdog` the thread that ends a
channel which hangs, and the requests (ChannelRequest, stuck_stream); `library` NCCL itself: versions, devices, errors.
"""
