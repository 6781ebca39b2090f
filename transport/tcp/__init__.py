"""This folder holds the transport over TCP connections of our own.

Others import TcpTransport of `over_tcp`. `connections` makes the connections, and `tcp_peer` has what a rank knows of
another.
"""
