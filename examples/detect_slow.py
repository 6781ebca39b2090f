"""When a job became slow, and when it recovered, from one iteration's time after the other."""

from lanterne.failslow.detect.tracker import Tracker

tracker = Tracker()
for time_s in [1.0] * 40 + [1.5] * 20 + [1.0] * 20:
    event = tracker.update(time_s)
    if event is not None:
        print(event)
(incident,) = tracker.incidents
assert (incident.onset, incident.relief) == (40, 60)
