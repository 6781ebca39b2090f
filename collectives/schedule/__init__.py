"""This folder holds collective algorithms as data: their form (`ir`, `contracts`, `chunk_layout`), the one checker
(`check`, `cells`), the cost model (`cost`), what makes schedules of schedules (`passes`), drawings (`draw`) and exports
(`export_json`, `export_msccl`, `export_mscclpp`, which share `export_lowering`). It is pure: NumPy and Python, no MPI,
device, process or file. Others import `ir.CollectiveSchedule`, `check.check` and `CheckedSchedule`,
`contracts.CONTRACTS`, `cost.CostModel` and `price`, and the drawings and exports.
"""
