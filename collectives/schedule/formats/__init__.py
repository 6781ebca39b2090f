"""This folder holds schedules as files: our JSON (`export_json`), MSCCL's XML (`export_msccl`, `import_msccl`), plans
of MSCCL++ (`export_mscclpp`), execution traces (`export_chakra`), and who reads those that can be (`read_schedule`).
"""
