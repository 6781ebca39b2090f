"""This folder holds what all commands share for reading options and telling results: files, no MPI, no processes.

Others may import `units` (sizes, times, rates, whole numbers and lists of names, parsed and printed), `report` (the
JSON envelope, files written whole, tables, progress) and `bars` (figures against what they have to reach).
"""
