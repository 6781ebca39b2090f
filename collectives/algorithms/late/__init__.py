"""This folder holds the all-reduces for ranks that come late: what the others can do without them comes first, and the
phase "join" waits for them. They are pure functions like those of the folder above, reached through its `catalogue`;
`join` is what the others share (with its parts `join_siteswap` and `join_tail`).
"""
