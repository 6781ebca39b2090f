"""This folder holds the commands about slowness: detect, locate, rebalance, history, serve, validate, and watch.

The first four read files or options and compute; serve shows what watch finds; validate measures on the ranks of a job;
watch starts a program with a recorder in it and reads its logs.
Others may import `iteration_times` and `watch.print_report`.
"""
