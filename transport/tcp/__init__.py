"""This folder holds the transport over TCP connections of our own.

Others import TcpTransport of `over_tcp`. `tcp_peer` has what a rank knows of another, `duplex` the two ends of one
connection and what is said over it, `seal` the keyed digests that prove that nobody has changed it.
"""
