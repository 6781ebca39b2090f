"""The whole run of `lanterne demo` in the Chrome trace format, for ui.perfetto.dev."""

from lanterne.pipeline.execute.measured import timeline
from lanterne.pipeline.simulate.chrome_trace import chrome_trace


def trace(timelines, records, steps):
    """The whole run in the Chrome trace format: actions and messages of all ranks, steps, throughput and delays."""
    start_s = min(float(gathered["start_s"].min()) for _, gathered in timelines)
    events, arrows = [], 0
    for number, (checked, gathered) in enumerate(timelines):
        shift_us = (float(gathered["start_s"].min()) - start_s) * 1e6
        ids = 0
        shown = chrome_trace(timeline(gathered, checked, checked.problem, 1.0), 1e6)
        for event in shown["traceEvents"]:
            if event["ph"] == "C" or (event["ph"] == "M" and number):
                continue
            moved = event | ({"ts": round(event["ts"] + shift_us, 1)} if "ts" in event else {})
            if "id" in event:
                moved["id"] += arrows
                ids = max(ids, event["id"] + 1)
            events.append(moved)
        arrows += ids
    for record in records:
        at_us = (record["ended_s"] - start_s) * 1e6
        values = {"tokens/s": record["tokens_per_s"]}
        values |= {f"link {link} ms": delay_s * 1e3 for link, delay_s in record["link_delay_s"].items()}
        events += [
            {"ph": "C", "name": name, "pid": 0, "tid": 0, "ts": at_us, "args": {name: value}}
            for name, value in values.items()
        ]
    for step in steps:
        at_us = max(step["at_s"] - start_s, 0.0) * 1e6
        name = f"{step['name']}: {step['text']}"
        events.append({"ph": "i", "s": "g", "name": name, "pid": 0, "tid": 0, "ts": at_us})
    return {"displayTimeUnit": "ms", "traceEvents": events}
