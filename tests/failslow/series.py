"""Iteration times for tests: exact levels with a little deterministic noise."""

import random


def series(*parts, noise=0.005, seed=1):
    """Iteration times of (rows, level) `parts`, each sample off by up to `noise`."""
    rng = random.Random(seed)
    return [level * (1 + rng.uniform(-noise, noise)) for rows, level in parts for _ in range(rows)]
