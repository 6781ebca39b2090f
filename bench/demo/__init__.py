"""This folder holds `lanterne demo`: command starts the ranks of job, which tell records to a file; steps names what
happened, screen turns records into text, and picture shows them live, drawn or as a trace. Only job uses MPI or UCX,
and only command and picture write files. Nobody else imports from here.
"""
