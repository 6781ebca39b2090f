"""This folder predicts iteration times of real devices: `runs` reads recorded runs, `fit` finds from them what a
message costs on a kind of GPU (`parameters`), `prediction` says how long an iteration takes whose links are slow, and
`cluster` what to plan for. It is pure.
`h800.json` holds the parameters found from the runs that the authors of ADAPTRA published.
"""
