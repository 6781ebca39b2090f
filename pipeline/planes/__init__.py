"""This folder holds the data planes: how the messages of a pipeline get from rank to rank.

They communicate, over the communicator that they are made for; delegates are processes of their own, and share memory
with their rank. Others import `data_plane` (DataPlane, Receive), `plane_makers` (make_plane, find_plane, PLANES,
predict, shaped), and the planes themselves where they need one in particular: `inline`, `delegate`, `observed`,
`streams`.
"""
