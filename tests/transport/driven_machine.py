"""A machine whose clock a test drives."""

from lanterne.transport.machine import Machine


class DrivenMachine(Machine):
    """Its clock stands still but for sleeps and yields, which are counted.

    Attributes: `at_s`, what the clock says, to be set; `yield_s`, what a yield takes, `nap_s`, what a sleep takes at
    least; `yields`, `naps`, `last_nap_s`; `others_s`, what other threads have computed, to be set.
    """

    def __init__(self, at_s=100.0, yield_s=0.0, nap_s=0.0):
        self.at_s, self.yield_s, self.nap_s = at_s, yield_s, nap_s
        self.yields = self.naps = 0
        self.last_nap_s = 0.0
        self.others_s = 0.0

    def now_s(self):
        return self.at_s

    wall_s = now_s

    def sleep(self, seconds):
        self.naps += 1
        self.last_nap_s = seconds
        self.at_s += max(seconds, self.nap_s)

    def give_way(self):
        self.yields += 1
        self.at_s += self.yield_s

    def others_cpu_s(self):
        return self.others_s
