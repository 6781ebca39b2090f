"""This folder holds `lanterne demo`, which nobody else imports.

`command` starts the ranks of `job`, which train over MPI or UCX and tell records to a file; `steps` says what happened;
`screen` turns records into text, purely; `picture` shows them live, drawn, or as a trace.
"""
