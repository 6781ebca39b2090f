"""This folder holds rails: connections of our own, TCP or shared memory, of which one takes over where another dies.

`paths` are reliable paths over them: Delegates, processes that send and receive for a rank through shared memory, for
the data plane of pipelines (`delegate_transport`), have such paths, and so has SpareTransport, which saves the messages
of any other transport (`spare`). `rail_names` says what rails are called and which join two ranks. `failover` is pure;
all else uses sockets, processes or shared memory.
"""
