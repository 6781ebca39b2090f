"""This folder holds what `algorithm="auto"` goes by: measuring a group with its own collectives (`learn`, `trials`),
what is predicted from that (`predict`), the choices (`tuning`), and the sizes of messages (`pacing`). Measuring
communicates and keeps files in LANTERNE_CACHE; the rest is pure. Others import `tuning.Tuning` and its models,
`pacing`, and `predict.priced_schedule`.
"""
