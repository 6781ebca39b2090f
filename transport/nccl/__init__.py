"""This folder holds the transport over NCCL, through CuPy, which is loaded when one is opened; it needs a GPU.

`over_nccl` has NcclTransport; `channel` the messages of one communicator on a stream (NcclChannel), which ends as its
base `watched_communicator` says; `watchdog` the thread that ends one which hangs, and the requests (ChannelRequest,
stuck_stream); `binding` NCCL itself: devices, errors, through CuPy or, where LANTERNE_NCCL says so, NVIDIA's
`nccl4py`; `versions` what goes together.
"""
