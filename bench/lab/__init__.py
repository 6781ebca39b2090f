"""This folder holds `lanterne lab`: a cluster of network namespaces in one box.

`network` makes namespaces and links with ip and tc, as root, and removes them; `command` runs a program on every host.
Others may import `network` (Network, Undertaker, create), and of `command` resolve, end_in_order, environment,
mpi_environment and mpiexec_words.
"""
