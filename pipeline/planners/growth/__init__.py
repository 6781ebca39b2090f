"""This folder holds how `best` comes from words for a few microbatches to words for many. It is pure.

Its `search` imports `growing`, and `loops` imports `periods`, which is compiled.
"""
