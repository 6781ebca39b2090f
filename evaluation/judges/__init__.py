"""This folder holds an independent judge of our simulator of flows: `compare` writes what a schedule sends to a file,
has SimGrid run it (`judge`, a script of its own under the system's Python), and sets the times side by side.
"""
