"""This folder holds labelled jobs, oracles and other detectors, and what scores our detector beside them.

`score` and `update_cost` are programs (`python -m`). Jobs: `drawn_jobs` (every kind, labels that stand clear),
`noise_families` (noise of other makes), `world_jobs` (as hard as clusters', some on `real_series`). How well any
detector could do: `oracle` for the first, `level_oracle` for the last. To compare with: `bocd`, `breakpoints`,
`sliding`.
"""
