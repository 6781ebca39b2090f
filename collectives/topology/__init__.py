"""This folder holds what a cluster looks like: `topology` (nodes, ranks, links and who shares them), files of it
(`topology_json`) and examples (`presets`). It is pure. Others import `topology.Topology`, `topology_json.read_topology`
and `presets.PRESETS`.
"""
