"""This folder holds `lanterne pipeline`'s commands but `train`: plan, simulate, sweep, partition, run.

`measure` starts processes; several write files. Others may import `measure` (PipelineCase, measure, on_ranks, Planes),
`adaptation` and `adaptation_report` (modes side by side while links are slow) and `events_input` (what is slow when).
"""
