"""This folder holds what makes plans for a `Problem`: `schedulers` has every scheduler by name, `best` is the one to
use, and `adaptra`, `crosspipe` and `optimal` are the papers'; from a plan `solver` goes on, for `optimal` and `best`;
`bounds` says what no plan can be below, `partition` and `layer_times` cut a model's layers into stages. It is pure, but
for Numba's cache of compiled code and the clocks that `layer_times`, `best` and `solver` read. Others import
`schedulers`, `best`, `adaptra`, `bounds`, `partition` and `layer_times`; the rest serves these.
"""
