"""This folder holds what a cluster looks like: `topology` (nodes, ranks, links and who shares them), files of it
(`topology_json`), examples (`presets`), what judges the cost model on it (`flows`), what nothing can beat
(`port_bounds`). It is pure. Others import `topology.Topology`, `topology_json.read_topology` and
`presets.find_topology`.
"""
