"""A job's status as a real ledger makes it, of made-up call logs."""

import json

from call_logs import job_calls, write_logs

from lanterne.failslow.record.job_ledger import JobLedger, about_run
from lanterne.failslow.record.job_log import JobLog

PROGRAM = ["train.py", '<b>"\\\n']
HOST = {"host": "h", "pressure": {"cpu": 0.4}, "nics": {"eth0": {"state": "up", "errors": 3, "rx_bytes": 7}}}
GPU = {"index": 0, "uuid": "GPU-1", "reasons": ["heat (hardware)"], "throttled": True, "sm_mhz": 990, "celsius": 91}


def ledger_of(folder, iterations=140, tell_host=True, **options):
    """A JobLedger that has read a job of 8 ranks whose rank 3 is slow from iteration 100 to the end."""
    folder.mkdir(exist_ok=True)
    write_logs(folder, job_calls(8, iterations, late=(3, 100, iterations, 10e-3)), ended=False)
    job = JobLog(folder, 8)
    ledger = JobLedger(job, about_run(PROGRAM), folder / "incidents", **options)
    if tell_host:
        told = HOST | {"gpus": [GPU], "absent": ["clocks of cores: no cpufreq"]}
        (folder / "host-h.telemetry").write_text(json.dumps(told))
    ledger.look()
    for notice in job.poll():
        ledger.notice(notice)
    ledger.look()
    return ledger
