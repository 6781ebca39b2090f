"""This folder holds `lanterne pipeline train`, and what makes its links and ranks slow or broken on purpose.

It starts processes and writes files. Others may import `job` (the options of a model and the trainer that they
describe) and `adapt` (Disturbed).
"""
