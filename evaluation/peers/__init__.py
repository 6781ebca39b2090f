"""This folder holds `./run evaluate lab-peers`: all-reduce against MPICH, Open MPI and Gloo on the emulated cluster.

`lab_peers` is the command, `lab_arrivals` another, of patterns of arrivals; `team` starts a contender's processes on
all hosts and gives them orders over sockets, `peer_worker` is the program that they run in the contender's own Python,
and `peers_report` makes the tables. It needs the network namespaces of `bench.lab`, and no other folder imports it.
"""
