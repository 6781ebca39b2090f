"""What a guard tells of its rank's end. In a process of its own, since a guard ends all processes below it."""

import subprocess
import sys

WHY = "it still ran 1 s after rank 0 had failed"
# The store hears of the end before the guard sees it, and tells the guard that its rank is dead.
SEES_IT_LATE = f"""
import os, signal, socket
from collections import deque
from lanterne.transport.job.guard import Guard
from lanterne.transport.wire import Kind, pack_frame, take_frame

class Client:
    notices = deque()
    told = []
    def call(self, kind, fields):
        self.told.append(fields)
    def pump(self):
        pass

client = Client()
guard = Guard(["sleep", "60"], 1, client, socket.socketpair()[0])
while os.getpgid(guard._child) != guard._child:
    os.sched_yield()  # It has no session of its own yet.
os.kill(guard._child, signal.SIGSTOP)
guard._end_rank(0.0, {WHY!r})
guard._keep_deadlines()
guard._kill_at = 0.0
guard._keep_deadlines()
frame = bytearray(pack_frame(Kind.DIED_NOTICE, 0, [1, b"its connection was lost"]))
client.notices.append((Kind.DIED_NOTICE, take_frame(frame)[2]))
guard._finished()
while not client.told:
    guard._reap()
print(client.told[0][1], client.told[0][2].decode())
"""


def test_why_a_rank_was_ended_is_told_also_where_the_store_hears_of_it_first():
    done = subprocess.run([sys.executable, "-P", "-c", SEES_IT_LATE], capture_output=True, text=True, check=False)
    assert done.stdout == f"137 killed by signal 9 (SIGKILL): {WHY}\n", done.stderr
