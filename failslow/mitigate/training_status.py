"""The status of training (a document, job_ledger.py of `record`) from iterations' times, and from a Controller's work.

    status = TrainingStatus(comm.world_size, ["train.py"], loop.controller)
    publisher = Publisher(listen="9470")
    publisher.offer(status.document)
    while loop.iterations < 1000:
        done = loop.iteration()
        status.add(done.number, done.seconds)

Rank 0 tells whenever somebody asks, in a thread of whoever does. Without a Controller incidents are those that a
Tracker finds in the times, and nobody is named.
"""

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from math import inf
from statistics import median
from typing import Any, NamedTuple

from lanterne.failslow.detect.tracker import Tracker
from lanterne.failslow.mitigate.controller import Controller
from lanterne.failslow.mitigate.decision import Decision
from lanterne.failslow.record.blame import LATEST
from lanterne.failslow.record.bounds import KEPT, OPEN
from lanterne.failslow.record.incidents import REMEDIES, SCHEMA_VERSION, IncidentLog
from lanterne.failslow.record.job_ledger import about_run, utc
from lanterne.failslow.record.whereabouts import Whereabouts
from lanterne.pipeline.adapt.suspect import Suspect


class Blamed(NamedTuple):
    """What a Controller knew after an iteration, as its attributes have it: the latest `incidents`, of `total`."""

    usual_s: float | None
    saved_s: float
    total: int
    incidents: tuple[dict[str, Any], ...]
    decisions: tuple[Decision, ...]


class TrainingStatus:
    """Collects. One thread adds, any may have the document.

    Args:
        ranks: of the job.
        program: its command line.
        controller: of a ClosedLoop, on rank 0; None: nothing is mitigated.
        begun_early: tells how many calls began without the late rank; None where nobody knows.
    """

    def __init__(
        self,
        ranks: int,
        program: Sequence[str],
        controller: Controller | None = None,
        begun_early: Callable[[], int] | None = None,
    ) -> None:
        self._ranks = ranks
        self._controller = controller
        # Of whoever adds, or tells.
        self._lock = threading.Lock()
        self._blamed = self._blame()
        self._begun_early = begun_early
        self._about = about_run(program)
        self._tracker = Tracker()
        self._recent: deque[tuple[int, float]] = deque(maxlen=KEPT)
        self._count = 0
        self._total_s = 0.0
        # (row of the tracker, what to add for the iteration's number) where that changes: some have no time.
        self._shifts: list[tuple[int, int]] = []
        # Incidents that the tracker does not hold any more.
        self._forgotten = 0
        self._incidents = IncidentLog(None, self._about, _where)

    def add(self, iteration: int, time_s: float) -> None:
        """An iteration has ended, that took `time_s`; of one that is no time only the number counts."""
        with self._lock:
            self._count = iteration + 1
            if 0.0 <= time_s < inf:
                self._total_s += time_s
                self._recent.append((iteration, time_s))
            if 0.0 < time_s < inf:
                self._track(iteration, time_s)
            # What the controller knows changes while the next iteration runs.
            self._blamed = self._blame()

    def _track(self, iteration: int, time_s: float) -> None:
        row = self._tracker.row
        if not self._shifts or self._shifts[-1][1] != iteration - row:
            self._shifts = [*self._shifts[1 - OPEN :], (row, iteration - row)]
        self._tracker.update(time_s)
        self._forgotten += self._tracker.forget(KEPT)

    def _iteration(self, row: int) -> int:
        """The number of the tracker's row; near it where it is older than all shifts that are known."""
        at = bisect_right(self._shifts, row, key=lambda shift: shift[0])
        return row + self._shifts[max(at - 1, 0)][1]

    def _blame(self) -> Blamed | None:
        of = self._controller
        if of is None:
            return None
        latest = of.incidents[-KEPT:]
        return Blamed(of.health.usual_s, of.saved_s, len(of.incidents), (*map(dict, latest),), (*of.decisions,))

    def document(self, *, ended: bool = False) -> dict[str, Any]:
        """The status."""
        with self._lock:
            return self._document(ended=ended)

    def _document(self, *, ended: bool) -> dict[str, Any]:
        blamed = self._blamed
        found = list(self._found() if blamed is None else self._named(blamed))
        count = self._forgotten + len(self._tracker.incidents) if blamed is None else blamed.total
        lasting = [one for one in found if one["lasts"]]
        latest = [time_s for _, time_s in list(self._recent)[-LATEST:]]
        usual_s = self._tracker.level_s if blamed is None else blamed.usual_s
        known: dict[str, float] = {} if blamed is None else {"saved_s": blamed.saved_s}
        if self._begun_early is not None:
            known["begun_early"] = self._begun_early()
        return {
            "schema_version": SCHEMA_VERSION,
            **self._about,
            "program": " ".join(self._about["program"]),
            "time": utc(),
            "ended": ended,
            "ranks": self._ranks,
            "reported": self._ranks,
            "iterations": {
                "count": self._count,
                "total_s": self._total_s,
                "last_s": latest[-1] if latest else None,
                "median_s": median(latest) if latest else None,
                "usual_s": usual_s,
                "ratio": max([one["iterations"]["ratio"] for one in lasting], default=1.0),
                "slow": bool(lasting),
                "recent": [list(one) for one in self._recent],
            },
            "late": [],
            "thresholds": {},
            "notes": [],
            "counts": {"slow": count},
            "incidents": found,
            "telemetry": {},
            **known,
        }

    def _found(self) -> Iterator[dict[str, Any]]:
        for one in self._tracker.incidents[-KEPT:]:
            relief = None if one.relief is None else self._iteration(one.relief)
            iterations = {"onset": self._iteration(one.onset), "relief": relief, "ratio": one.ratio}
            yield self._incident(iterations, "iterations take longer", (), REMEDIES["unknown"])

    def _named(self, blamed: Blamed) -> Iterator[dict[str, Any]]:
        usual_s = blamed.usual_s or 1.0
        for one in blamed.incidents:
            named = [decision for decision in blamed.decisions if one["what"] in decision.suspects]
            before_s = next((each.before_s for each in named if each.before_s), usual_s)
            done = [f"{each.strategy} at iteration {each.iteration}" for each in named if each.kind == "mitigate"]
            remedy = f"done: {', '.join(done)}" if done else "nothing was worth its cost yet"
            suspect, by = Suspect(one["what"]), one["severity"]
            size = f"computes {by:.2f} times as long" if suspect.is_rank else f"messages take {by * 1e3:.3g} ms more"
            evidence = [f"{one['what']}: {size}", *(each.evidence for each in named if each.evidence)]
            ratio = max(before_s / usual_s, 1.0)
            iterations = {"onset": one["suspected"], "relief": one["ended"], "ratio": ratio}
            ranks = suspect.ends if suspect.is_rank else ()
            yield self._incident(iterations, f"{suspect} is slow", evidence, remedy, ranks)

    def _incident(
        self, iterations: dict[str, Any], what: str, evidence: Sequence[str], remedy: str, ranks: Sequence[int] = ()
    ) -> dict[str, Any]:
        onset, relief = iterations["onset"], iterations["relief"]
        lasts = "lasts" if relief is None else f"ended at {relief}"
        text = f"{what} since iteration {onset}, {lasts}: {iterations['ratio']:.2f} times the usual time"
        about = {
            "lasts": relief is None,
            "iterations": iterations,
            "ranks": [_where(rank).record() | {"text": "named by the controller"} for rank in ranks],
            "evidence": list(evidence),
            "remedy": remedy,
        }
        return self._incidents.update("slow", (what, onset), text, about)


def _where(rank: int) -> Whereabouts:
    """Return where a rank is: it runs, and no more is known."""
    return Whereabouts(rank, None, None, "runs", (), None)
