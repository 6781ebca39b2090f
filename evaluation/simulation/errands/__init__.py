"""This folder holds errands: short stories that a seed draws, of what stores, boards and groups are asked, and answer.

`errand` has their world and the puppets that ask; each other file has errands of one part, with what must come of them:
`admitting` (who is taken in, and where), `returning` (who comes back to another store), `ending` (guards, goodbyes,
votes), `meeting`, `boards` (calls at a board), `deciding` (by what it decides), `hosts` (stores of several hosts), and
`grouping` (what a rank is told of the others). `stories` has all of them.
"""
