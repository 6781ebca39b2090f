"""This folder holds rails: connections of our own, TCP or shared memory, of which one takes over where another dies.

`delegate_transport` has Delegates, processes that send and receive for a rank through shared memory, for the data
plane of pipelines; `spare` has SpareTransport, which saves the messages of any other transport. `rail_names` says what
rails are called and which join two ranks. `failover` and `ledger` are pure; all else uses sockets, processes or shared
memory.
"""
