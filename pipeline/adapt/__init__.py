"""This folder holds what measures a running pipeline and keeps it on a plan that suits its links.

`adapter`, `agreement` and `clocks` send messages; the rest is pure, but for the clock. Others may import `adapter` (the
Adapter and its settings), `agreement` (Agreement, from_first), `profile` and `estimate` (what an iteration showed),
`findings`, `suspect` (Suspect), `decide` (Change) and `injection` (what makes links and ranks slow on purpose).
"""
