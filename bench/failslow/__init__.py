"""This folder holds the commands about slowness: detect, locate and rebalance read files or options and compute;
validate measures on ranks; watch starts a program, with a recorder in it, and reads its logs. Others may import
detect.read_column and watch.print_report.
"""
