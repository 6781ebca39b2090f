"""This folder holds collective algorithms as data: their form (`ir`, `contracts`, `chunk_layout`), the one checker
(`check_schedule`, `cells`; `check_own` of one rank's part), the cost model (`cost`), what makes schedules of schedules
(`passes`), drawings (`draw`) and the `formats` of files. It is pure: NumPy and Python, no MPI, device or process.
Others import `ir.CollectiveSchedule`, `check_schedule.check` and `CheckedSchedule`, `contracts.CONTRACTS`,
`cost.CostModel` and `price`, and the drawings.
"""
