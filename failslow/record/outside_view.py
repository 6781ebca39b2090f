"""A job that is not recorded, as its host shows it: which of its ranks are stopped, dead, stuck, or idle beside others.

Without its help nothing is known of a program's calls, iterations or lines of code. Linux tells, of every process, its
state, the core time that it has used and what it waits for in the kernel, and its environment tells its rank. A rank
that is stopped or gone is named at once. One that is idle while most others compute is named too, and one that computes
while most others are idle: where calls spin while they wait, the others wait for the first, where they sleep, for the
second. Where none computes, it is the one that alone waits elsewhere than the others. Of two ranks neither can be told.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from lanterne.failslow.record.recorder import RANK_VARIABLES, process_stat
from lanterne.transport.job.launch import JOB_VARIABLE

# What ranks of a job have in common; where none is set, the process that started them.
JOB_VARIABLES = (
    *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID"),
    *("SLURM_JOB_ID", "SLURM_STEP_ID"),
)
# Over so long is it idle, below this share of a core that it has or wants, or does it compute, above this one.
WINDOW_S, IDLE, BUSY = 5.0, 0.05, 0.25
# A rank that the others wait for is one of at most this share; a difference between two ranks says nothing.
MINORITY, LEAST_RANKS = 1 / 3, 3
# Below this share of a core a rank stands still: what other threads of it use.
STILL = 0.02
WORDS = {
    "gone": "its process has ended",
    "stopped": "its process is stopped (SIGSTOP, or a debugger)",
    "stuck": "it waits in the kernel and cannot be interrupted: a disk, a network file system or a driver",
    "idle": "it is idle while most others compute: they wait for it, where their calls spin",
    "busy": "it computes while most others are idle: they wait for it, where their calls sleep",
    "elsewhere": "all stand still, and it alone waits elsewhere than the others: they wait for it",
}
# What a process waits for, by the beginning of the kernel's function.
WAITS = {
    "futex": "another thread, or a lock",
    **dict.fromkeys(("poll_", "do_poll", "ep_poll", "do_select", "do_sys_poll"), "messages or files"),
    **dict.fromkeys(("pipe_", "anon_pipe"), "a pipe: another process"),
    **dict.fromkeys(("sk_wait", "wait_woken", "inet_", "tcp_", "unix_"), "a socket"),
    **dict.fromkeys(("hrtimer", "do_nanosleep", "clock_nanosleep"), "the time to pass: it sleeps"),
    **dict.fromkeys(("nfs", "rpc_"), "a network file system"),
    **dict.fromkeys(("io_schedule", "folio_wait", "blk_", "jbd2"), "a disk"),
    **dict.fromkeys(("do_wait", "kernel_wait"), "a child process"),
}


class Glimpse(NamedTuple):
    """A process at `at_s`: its `state`, Linux's letter; core time `used_s`; `waits`, where in the kernel, or ""."""

    at_s: float
    state: str
    used_s: float
    waits: str


class _Member(NamedTuple):
    """A process that has a rank."""

    rank: int
    job: tuple[str | None, ...]
    parent: int


class OddRank(NamedTuple):
    """A rank that is not as it should be: `kind`, of WORDS, since `since_s`; `text` for people."""

    rank: int
    kind: str
    since_s: float
    text: str


def ranks_beside(pid: int, proc: Path = Path("/proc")) -> dict[int, int]:
    """Rank -> process, of the ranks on this host of the job of process `pid`; empty where it is no rank."""
    members: dict[int, _Member] = {}
    for folder in proc.iterdir():
        if folder.name.isdecimal():
            environment = _environment(folder)
            text = next((environment[name] for name in RANK_VARIABLES if name in environment), "")
            if text.isascii() and text.isdecimal():
                ours = environment.get(JOB_VARIABLE)
                job = (ours,) if ours else tuple(environment.get(name) for name in JOB_VARIABLES)
                members[int(folder.name)] = _Member(int(text), job, process_stat(folder).parent)
    own = members.get(pid)
    if own is None:
        return {}
    same = {at: one for at, one in members.items() if one.job == own.job and (any(own.job) or one.parent == own.parent)}

    def depth(at: int) -> int:
        """How many of its ancestors are of its rank, whose environment it has: a shell, what loads data for."""
        parent = same.get(same[at].parent)
        return 0 if parent is None or parent.rank != same[at].rank else 1 + depth(same[at].parent)

    # Of the other ranks the same one: their programs, where `pid` is a program that a shell has started.
    alike = {at: one for at, one in same.items() if depth(at) == depth(pid)}
    found = {one.rank: at for at, one in sorted(alike.items(), reverse=True)}
    return dict(sorted((found | {own.rank: pid}).items()))


class OutsideView:
    """What is seen of processes from outside; `look()` every half second or so.

    Args:
        processes: rank -> process.
        proc: where Linux tells of them.
        window_s: over which idleness is judged.

    Attributes: `odd`, rank -> OddRank now.
    """

    def __init__(self, processes: Mapping[int, int], proc: Path = Path("/proc"), window_s: float = WINDOW_S) -> None:
        self.processes: dict[int, int] = dict(processes)
        self.odd: dict[int, OddRank] = {}
        self._proc, self._window_s = proc, window_s
        self._tick_s = 1 / os.sysconf("SC_CLK_TCK")
        self._started = {rank: process_stat(proc / str(pid)).started for rank, pid in self.processes.items()}
        self._glimpses: dict[int, deque[Glimpse]] = {rank: deque() for rank in self.processes}

    def look(self, now_s: float) -> list[OddRank]:
        """Look at all of them; those that have become odd, or odd in another way."""
        for rank, pid in self.processes.items():
            seen = self._glimpses[rank]
            seen.append(self._glimpse(rank, pid, now_s))
            while len(seen) > 2 and seen[1].at_s <= now_s - self._window_s:
                seen.popleft()
        kinds = odd_kinds(self._glimpses, self._window_s)
        new = []
        for rank, kind in kinds.items():
            before = self.odd.get(rank)
            if before is None or before.kind != kind:
                self.odd[rank] = OddRank(rank, kind, now_s, self._words(rank, kind))
                new.append(self.odd[rank])
        self.odd = {rank: self.odd[rank] for rank in kinds}
        return new

    def report(self) -> list[dict[str, Any]]:
        """Each rank as it is now: `rank`, `pid`, `state`, `cores` used of late (None: not known), `waits`, `odd`."""
        found = []
        for rank, pid in self.processes.items():
            seen = self._glimpses[rank]
            last = seen[-1] if seen else Glimpse(0.0, "X", 0.0, "")
            odd = self.odd.get(rank)
            about = {"state": last.state, "cores": cores_used(seen), "waits": last.waits}
            found.append({"rank": rank, "pid": pid, **about, "odd": odd.kind if odd else None})
        return found

    def _glimpse(self, rank: int, pid: int, now_s: float) -> Glimpse:
        folder = self._proc / str(pid)
        now = process_stat(folder)
        state = now.state if now.started == self._started[rank] else "X"
        waits = ""
        with suppress(OSError):
            waits = (folder / "wchan").read_text().strip().strip("0")
        return Glimpse(now_s, state, now.used * self._tick_s, waits)

    def _words(self, rank: int, kind: str) -> str:
        waits = self._glimpses[rank][-1].waits
        known = next((words for begin, words in WAITS.items() if waits.startswith(begin)), "")
        where = f"; it waits for {known} ({waits})" if known and kind in ("idle", "stuck", "elsewhere") else ""
        return f"rank {rank} (pid {self.processes[rank]}): {WORDS[kind]}{where}"


def odd_kinds(glimpses: Mapping[int, Sequence[Glimpse]], window_s: float = WINDOW_S) -> dict[int, str]:
    """Of each rank that is not as it should be the kind, a word of WORDS; `glimpses` of each, the latest last."""
    found: dict[int, str] = {}
    cores: dict[int, float] = {}
    for rank, seen in glimpses.items():
        last = seen[-1].state
        if last in "XZ":
            found[rank] = "gone"
        elif last in "Tt":
            found[rank] = "stopped"
        elif seen[-1].at_s - seen[0].at_s >= window_s * 0.9:
            if all(one.state == "D" for one in seen):
                found[rank] = "stuck"
            else:
                cores[rank] = cores_wanted(seen)
    if len(cores) < LEAST_RANKS:
        return found
    usual = median(cores.values())
    kind = "idle" if usual >= BUSY else "busy" if usual < IDLE else None
    apart = [rank for rank, used in cores.items() if (used < IDLE if kind == "idle" else used >= BUSY)]
    if kind is not None and len(apart) <= MINORITY * len(cores):
        found |= dict.fromkeys(apart, kind)
    if not found and max(cores.values()) < STILL:
        found = dict.fromkeys(_elsewhere({rank: glimpses[rank] for rank in cores}), "elsewhere")
    return found


def _elsewhere(glimpses: Mapping[int, Sequence[Glimpse]]) -> list[int]:
    """The one rank that all the while waited at another place in the kernel than all others did; none without one."""
    waits = {rank: {one.waits for one in seen} for rank, seen in glimpses.items()}
    places = Counter(place for found in waits.values() for place in found)
    apart = [rank for rank, found in waits.items() if len(found) == 1 and places[next(iter(found))] == 1]
    is_one = len(apart) == 1 and len(places) == 2 and all(places)
    return apart if is_one else []


def cores_used(seen: Sequence[Glimpse]) -> float | None:
    """Cores that a process used between the first glimpse and the last; None where these are one."""
    took_s = seen[-1].at_s - seen[0].at_s if seen else 0.0
    return max(0.0, seen[-1].used_s - seen[0].used_s) / took_s if took_s > 0.0 else None


def cores_wanted(seen: Sequence[Glimpse]) -> float:
    """Cores that a process used, or would have: the share of glimpses in which it could run, if that is more.

    Ranks that spin on a busy machine get less of a core than they would of an idle one.
    """
    return max(cores_used(seen) or 0.0, sum(one.state == "R" for one in seen) / len(seen))


def _environment(folder: Path) -> dict[str, str]:
    """The environment of a process; empty where it may not be read."""
    try:
        words = (folder / "environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (os.fsdecode(word).partition("=") for word in words)
    return {name: value for name, equals, value in pairs if equals}
