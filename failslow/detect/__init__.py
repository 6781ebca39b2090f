"""This folder holds the streaming detector of slow iterations: one time in, an event out where the level has changed.

It is pure Python on the standard library: no files, no processes, no NumPy, a few microseconds an iteration. Others
import `Tracker` (tracker.py), and `LevelEvent` and `incidents` (events.py).
"""
