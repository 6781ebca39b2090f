"""This folder holds what lets stages compute on a CUDA device while the executor stays on the host.

Needs CuPy and a device when it is used, not when it is imported. Others import `device_stage` (Device, cuda_device),
`device_times` (DeviceTimes), and, for data planes, `message_staging` (MessageStaging).
"""
