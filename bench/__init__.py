"""This folder holds the `lanterne` command: `cli` has the table of commands, each a module in the folder of its family.

`collective`, `pipeline`, `train`, `failslow`, `demo` and `lab` hold the commands that users call; `output` has
what all of them print and write with; `info` says what this machine offers.
`command_line` runs such a table. No other top folder imports bench.
"""
