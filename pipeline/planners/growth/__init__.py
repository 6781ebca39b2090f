"""This folder holds how `best` comes from words for a few microbatches to words for many. It is pure.

The planner's `search` imports `growing`, which imports `periods`, which is compiled.
"""
