"""Where a rank is that others wait for: whether its process runs, and which line of its program it is at."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

from lanterne.failslow.record.call_ring import RingReader
from lanterne.failslow.record.recorder import BEAT_S, Frame, boot_id, pid_namespace, process_stat

# A program whose Python has not run for so many beats is stopped, dead, or in code that does not let Python run.
MISSED_BEATS = 4
WORDS = {
    "silent": "no call of it was recorded",
    "ended": "its program has ended",
    "gone": "its process is gone",
    "stopped": "its process is stopped (SIGSTOP, or a debugger)",
    "unresponsive": "its Python does not run: it is in other code that holds it, or its host is",
    "runs": "it runs",
}
# What no waiting mends.
DECISIVE = ("ended", "gone", "stopped")
LIBRARIES = ("site-packages/", "dist-packages/", "/lib/python", "<frozen")


class Whereabouts(NamedTuple):
    """Where a rank is.

    Attributes: `state`: a word of WORDS; `frames`: of its Python code, innermost first, as of `age_s` ago; `gpu`,
    `nic`: what it computes on and sends by, as far as its environment tells.
    """

    rank: int
    host: str | None
    pid: int | None
    state: str
    frames: tuple[Frame, ...]
    age_s: float | None
    gpu: str | None = None
    nic: str | None = None

    def record(self) -> dict[str, Any]:
        """As plain lists, dicts, numbers and texts."""
        return self._asdict() | {"frames": [list(frame) for frame in self.frames], "text": str(self)}

    def __str__(self) -> str:
        parts = [] if self.state == "runs" and self.frames else [WORDS[self.state]]
        if self.frames:
            seen = "" if self.state == "runs" else "last seen "
            parts.append(f"{seen}at {place_of(self.frames)}")
        elif self.state not in ("silent", "ended"):
            parts.append("where in its Python code is not known")
        return "; ".join(parts)


def place_of(frames: tuple[Frame, ...]) -> str:
    """The innermost line of the user's own code, in words, and what it called."""
    file, line, function = next((f for f in frames if not any(word in f[0] for word in LIBRARIES)), frames[0])
    inner = "" if frames[0] == (file, line, function) else f", in {frames[0][2]} of {Path(frames[0][0]).name}"
    return f"{Path(file).name}:{line} in {function}{inner}"


def whereabouts(folder: Path, rank: int, reader: RingReader | None, beat_age_s: float | None = None) -> Whereabouts:
    """Where `rank` is, whose calls `reader` reads.

    Args:
        folder: of the call logs, where a program that makes no calls says where it is.
        beat_age_s: how long ago its Python said that it runs, where its clock is not ours; None: by our clock.
    """
    if reader is None:
        return Whereabouts(rank, None, None, "silent", (), None)
    header = reader.header
    pid, now_s = header.get("pid"), time.monotonic()
    is_here = header.get("boot") == boot_id()
    age_s = now_s - reader.beat_s if is_here else beat_age_s
    state = "runs"
    if reader.ended:
        state = "ended"
    elif is_here and header.get("pids") == pid_namespace() != "":
        state = _state_of(int(pid or 0), header.get("started"))
    if state == "runs" and age_s is not None and age_s > MISSED_BEATS * BEAT_S:
        state = "unresponsive"
    frames, seen_s = _frames(folder / f"rank-{rank}-{pid}.stack")
    seen_age_s = now_s - seen_s if is_here and seen_s is not None else None
    gpu, nic = header.get("gpu"), header.get("nic")
    return Whereabouts(rank, header.get("host"), pid, state, frames, seen_age_s, gpu, nic)


def _state_of(pid: int, started: Any) -> str:
    """A word of WORDS for a process of this machine that was started at tick `started`."""
    now = process_stat(f"/proc/{pid}")
    if now.started != started:
        return "gone"
    return {"T": "stopped", "t": "stopped", "Z": "gone", "X": "gone"}.get(now.state, "runs")


def _frames(path: Path) -> tuple[tuple[Frame, ...], float | None]:
    try:
        record = json.loads(path.read_text())
        return tuple((str(f), int(n), str(g)) for f, n, g in record["frames"]), float(record["time_s"])
    except (OSError, ValueError, KeyError, TypeError):
        return (), None
