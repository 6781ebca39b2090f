"""Calls that do not end while they last: which ranks have not come, or come to another call, and where they are.

Every rank's calls of a communicator are numbered as its log has them; who has begun fewer than others, or another call
of the same number, has not come. Who waits in a call itself is no culprit: they are the ranks at the end of the chain.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lanterne.failslow.evidence.progress import Progress, Stall, stall
from lanterne.failslow.operate.thresholds import USUAL_THRESHOLDS, Thresholds
from lanterne.failslow.record.bounds import KEPT, MANY, OPEN
from lanterne.failslow.record.call_ring import OPEN_S, RecordedCall
from lanterne.failslow.record.new_calls import NewCalls
from lanterne.failslow.record.whereabouts import DECISIVE, Whereabouts

# A status line after so many iterations; an incident, where no rank is dead, stopped or in another call, after so many
# times the longest that this call has lasted: a checkpoint of rank 0 is no hang. Neither before its threshold.
STATUS_ITERATIONS, PATIENCE_TIMES = 3, 2
# Shorter calls are no measure of patience; a reader that itself did not run for longer knows nothing of the time.
LONG_S, LONGEST_STEP_S = 0.5, 1.0
# Ranks that a line names.
MAX_SHOWN = 16


@dataclass(frozen=True)
class Hang:
    """A call that does not end.

    Attributes: `kind`: "missing" (ranks have not come), "order" (some are in other calls than the rest) or "call" (all
    have come and none leaves); `name`, `number` (from 1), `communicator`, `nbytes` of the call; `culprits`: where the
    ranks are that it waits for, or that died in it; `others`: the calls that they are in, or made last; `came`: ranks
    in it; `unknown`: how many more ranks of it are not known; `wait_s`; `is_incident`: beyond patience, or hopeless;
    `ended_after_s`: None while it lasts.
    """

    kind: str
    name: str
    number: int
    communicator: int
    nbytes: int
    culprits: tuple[Whereabouts, ...]
    others: dict[int, str]
    came: tuple[int, ...]
    unknown: int
    wait_s: float
    is_incident: bool
    ended_after_s: float | None = None

    @property
    def ranks(self) -> tuple[int, ...]:
        """The culprits' ranks."""
        return tuple(one.rank for one in self.culprits)

    @property
    def is_placed(self) -> bool:
        """Whether it is known where in its code a culprit is: a rank says so once a second."""
        return any(one.frames for one in self.culprits)

    @property
    def text(self) -> str:
        """One line for people; that of a call which went on says so only."""
        return self.story if self.ended_after_s is None else f"{self.call} went on after {self.ended_after_s:.1f} s"

    @property
    def call(self) -> str:
        """The call in words."""
        return self.name + (f" {self.number}" if self.number else "")

    @property
    def story(self) -> str:
        """What happened while it lasted, in one line."""
        call = self.call
        lasts = f"{'HANGS' if self.is_incident else 'waiting'} for {self.wait_s:.1f} s: {call}"
        if self.kind == "call" and not self.culprits:
            return f"{lasts}: {join_ranks(self.came)} came, none leaves it: a link, the network, or the call itself"
        shown = self.culprits[:MAX_SHOWN]
        if self.kind == "call":
            return f"{lasts}: all came, but {'; '.join(f'rank {one.rank}: {one}' for one in shown)}"
        if self.kind == "order":
            where = "; ".join(f"rank {one.rank} is in {self.others[one.rank]} ({one})" for one in shown)
            return f"{lasts}, but {where}: a call was left out, or the order is another"
        unknown = f" and {self.unknown} that are not known" if self.unknown else ""
        who = f"{join_ranks(self.ranks)}{unknown}" if self.culprits else f"{self.unknown} ranks that are not known"
        after = {rank: f", after {name}" for rank, name in self.others.items()}
        where = "; ".join(f"rank {one.rank}{after.get(one.rank, '')}: {one}" for one in shown)
        return f"{lasts}: {join_ranks(self.came)} came, not {who}" + (f" ({where})" if where else "")

    def record(self) -> dict[str, Any]:
        """As plain lists, dicts, numbers and texts."""
        culprits = [one.record() for one in self.culprits]
        others = {str(rank): name for rank, name in self.others.items()}
        return asdict(self) | {"culprits": culprits, "came": list(self.came), "others": others, "text": self.story}


class Blocked(NamedTuple):
    """A rank that is in `call`, its `number`-th of a communicator (0: a message), and has been for `age_s`."""

    call: RecordedCall
    number: int
    age_s: float


class SeenCalls:
    """The calls that each rank has ended, as far as they say which others it waits for.

    Args:
        folder: of the logs, where communicators have their ranks written.

    Attributes: of each rank `last`, the latest call, and `queued`, the names of those that return before all have come;
    `lost`: ranks of which nobody knows which of their calls is which.
    """

    def __init__(self, folder: Path) -> None:
        self.last: dict[int, RecordedCall] = {}
        self.queued: dict[int, frozenset[str]] = {}
        self.lost: set[int] = set()
        self._folder = folder
        self._ended: dict[int, Counter[int]] = {}
        self._longest_s: dict[tuple[int, str], float] = {}
        self._groups: dict[int, tuple[int, ...] | None] = {}

    def add(self, new: NewCalls) -> None:
        """Take calls that have ended."""
        for rank, communicator, begin, end in new.runs:
            ended = self._ended.setdefault(rank, Counter())
            if communicator in ended or len(ended) < MANY:
                ended[communicator] += end - begin
            else:
                self.lost.add(rank)
        for rank, part in new.parts.items():
            last = new.call(part.stop - 1)
            self.last[rank] = max(last, self.last.get(rank, last), key=lambda call: call.start_s)
        for row in np.flatnonzero(new.rows["end_s"] - new.rows["start_s"] > LONG_S).tolist():
            call = new.call(row)
            key = call.communicator, call.name
            if key in self._longest_s or len(self._longest_s) < OPEN:
                self._longest_s[key] = max(call.end_s - call.start_s, self._longest_s.get(key, 0.0))

    def restart(self) -> None:
        """The job was started again: calls are counted anew."""
        self.last.clear()
        self.lost.clear()
        self._ended.clear()
        self._groups.clear()

    def waited(self, communicator: int, name: str, wait_s: float) -> None:
        """A call took so long, and was seen while it did."""
        self._longest_s[communicator, name] = max(wait_s, self.longest_s(communicator, name))

    def longest_s(self, communicator: int, name: str) -> float:
        """How long the longest of such calls took; 0 where none took LONG_S."""
        return self._longest_s.get((communicator, name), 0.0)

    def ended(self, rank: int, communicator: int) -> int:
        """How many calls of a communicator `rank` has ended."""
        return self._ended.get(rank, Counter())[communicator]

    def is_queued(self, rank: int, name: str) -> bool:
        """Whether such a call of `rank` returns before all have come: it waits later."""
        return name in self.queued.get(rank, ())

    def begun(self, rank: int, calls: Mapping[int, RecordedCall]) -> Counter[int]:
        """Of each communicator, the calls that `rank` has begun; `calls`: those that have not ended."""
        return self._ended.get(rank, Counter()) + Counter(c.communicator for c in calls.values() if c.ranks > 1)

    def members(
        self, communicator: int, ranks: int, begun: Mapping[int, Counter[int]], world_size: int | None
    ) -> tuple[Iterable[int], int]:
        """The ranks of a communicator of so many, as far as known, and how many are not."""
        if ranks == world_size:
            return range(ranks), 0
        if self._groups.get(communicator) is None and len(self._groups) < OPEN:
            self._groups[communicator] = self._read_group(communicator)
        known = self._groups.get(communicator) or tuple(r for r, counts in begun.items() if counts[communicator])
        return known, max(0, ranks - len(known))

    def _read_group(self, communicator: int) -> tuple[int, ...] | None:
        try:
            return tuple(int(rank) for rank in json.loads((self._folder / f"group-{communicator}.json").read_text()))
        except (OSError, ValueError, TypeError):
            return None


class Standstill:
    """Since when a value of each rank has been the same, as far as was looked.

    Attributes: `clock_s`, of a clock that stands still while the reader does.
    """

    def __init__(self) -> None:
        self.clock_s: float = 0.0
        self._looked_s: float | None = None
        # By rank: the value, and since when, at the latest.
        self._seen: dict[int, tuple[float, float]] = {}

    def see(self, now_s: float, values: Mapping[int, float]) -> float:
        """Take the values at `now_s` of the reader's clock; return for how long one has been the same, the longest."""
        if self._looked_s is not None:
            self.clock_s += min(max(now_s - self._looked_s, 0.0), LONGEST_STEP_S)
        self._looked_s = now_s
        for rank, value in values.items():
            if rank not in self._seen or self._seen[rank][0] != value:
                self._seen[rank] = value, self.clock_s
        return max((self.age_s(rank) for rank in values), default=0.0)

    def age_s(self, rank: int) -> float:
        """Return for how long the value of `rank` has been the same, at least."""
        return self.clock_s - self._seen.get(rank, (0, self.clock_s))[1]

    def since_s(self, rank: int, index: int) -> float:
        """Return since when the call `index` of `rank` has been its latest, by the clock; now where not known."""
        begun, since_s = self._seen.get(rank, (0, self.clock_s))
        return since_s if begun == index + 1 else self.clock_s


class ToldHangs:
    """What was told of calls that do not end: what is new of them is told, and incidents are kept."""

    def __init__(self, seen: SeenCalls) -> None:
        self._seen = seen
        self._incidents: list[Hang] = []  # those that went on, the latest
        self._now: Hang | None = None
        self._told: tuple[str, tuple[int, ...]] | None = None

    @property
    def lasts(self) -> bool:
        """Whether one lasts that was told."""
        return self._now is not None

    def restart(self) -> None:
        """The job was started again: a call that lasted is over."""
        if self._now is not None:
            self._over(self._now)
        self._now = self._told = None

    def take(self, hang: Hang | None) -> list[Hang]:
        """What is to be told, `hang` being what lasts now: that, or also that what was told has gone on."""
        found: list[Hang] = []
        before = self._now
        if before is not None and (
            hang is None or (before.communicator, before.number) != (hang.communicator, hang.number)
        ):
            found, before = [self._over(before)], None
        if hang is None:
            self._now = self._told = None
            return found
        told = hang.kind, hang.ranks
        if (
            before is None
            or told != self._told
            or hang.is_incident > before.is_incident
            or (hang.is_placed > before.is_placed and not hang.is_incident)
        ):
            found.append(hang)
        if before is not None and before.is_incident and (told == self._told or not hang.is_incident):
            # What was told stays: at the end all are gone, whoever was there.
            hang = replace(before, wait_s=hang.wait_s)
        self._told, self._now = told, hang
        return found

    def _over(self, hang: Hang) -> Hang:
        """What was told has gone on."""
        ended = replace(hang, ended_after_s=hang.wait_s)
        self._seen.waited(hang.communicator, hang.name, hang.wait_s)
        if hang.is_incident:
            self._incidents = [*self._incidents[1 - KEPT :], ended]
        return ended

    def report(self) -> list[dict[str, Any]]:
        """The incidents up to now, the one that lasts at the end."""
        lasting = [self._now] if self._now is not None and self._now.is_incident else []
        return [hang.record() for hang in (*self._incidents, *lasting)]


class HangFinder:
    """Finds Hangs; `add` what every rank's log has new, then `look`.

    Args:
        folder: of the logs, where communicators have their ranks written.
        where: tells where a rank is.
        thresholds: from when on a wait is told, and how long a rank may not come, though it lives and no such wait has
            been seen before.
        settle: adds all calls that have ended up to now; called when that matters.

    Attributes: `thresholds`, which may be changed; `told`, the ToldHangs; `still`, the Standstill, which may be looked
    at between two looks.

    Cost: some 2 us a rank and time; memory is bounded.
    """

    def __init__(
        self,
        folder: Path,
        where: Callable[[int], Whereabouts],
        thresholds: Thresholds = USUAL_THRESHOLDS,
        settle: Callable[[], object] = lambda: None,
    ) -> None:
        self.thresholds = thresholds
        self._settle = settle
        self._seen = SeenCalls(folder)
        self.told: ToldHangs = ToldHangs(self._seen)
        self._where = where
        self.still: Standstill = Standstill()
        # (rank, index of its call) -> when it was first seen, of the same clock.
        self._since: dict[tuple[int, int], float] = {}

    def add_rank(self, rank: int, queued: Iterable[str]) -> None:
        """Expect calls of `rank`, of which those named in `queued` return before all have come: it waits later."""
        self._seen.queued[rank] = frozenset(queued)

    def restart(self) -> None:
        """The job was started again: `add_rank` follows."""
        self.told.restart()
        self._seen.restart()
        self._since.clear()

    def lose(self, rank: int) -> None:
        """Calls of `rank` were lost: nobody knows which of its calls is which, so it is no suspect."""
        self._seen.lost.add(rank)

    def add(self, new: NewCalls) -> None:
        """Take calls that have ended."""
        self._seen.add(new)

    def look(
        self,
        now_s: float,
        opened: Mapping[int, Mapping[int, RecordedCall]],
        usual_s: float,
        world_size: int | None,
        latest: Mapping[int, int],
    ) -> list[Hang]:
        """What is new: a call that waits, where those are that it waits for, that it is an incident, or goes on.

        Args:
            now_s: of the reader's clock.
            opened: of every rank whose log is known, the calls that have not ended, by index.
            usual_s: what an iteration takes as a rule, 0 where that is not known.
            world_size: ranks of the job, None where that is not known.
            latest: of every rank, the index of the latest call that has ended.
        """
        self.still.see(now_s, {})
        # Calls that are new wait for nobody yet, whatever their numbers.
        latest_open = [(rank, max(calls)) for rank, calls in opened.items() if calls]
        known = any(call in self._since or self.still.since_s(*call) < self.still.clock_s for call in latest_open)
        if known or any(self._seen.queued.values()):
            self._settle()
        blocked = self._blocked(opened, latest)
        longest = max((one.age_s for one in blocked.values()), default=0.0)
        status_s = max(self.thresholds.status_s, STATUS_ITERATIONS * usual_s)
        if longest < status_s:
            return self.told.take(None)
        begun = {rank: self._seen.begun(rank, calls) for rank, calls in opened.items()}
        return self.told.take(self._diagnose(blocked, begun, world_size, status_s))

    # -- who waits

    def _blocked(
        self, opened: Mapping[int, Mapping[int, RecordedCall]], latest: Mapping[int, int]
    ) -> dict[int, Blocked]:
        """The ranks whose latest call has not ended, or was only queued."""
        found: dict[int, Blocked] = {}
        seen: dict[tuple[int, int], float] = {}
        for rank, entered in opened.items():
            if rank in self._seen.lost:
                continue
            last = self._seen.last.get(rank)
            # What a rank does alone waits for nobody.
            calls = {index: call for index, call in entered.items() if call.ranks != 1}
            if calls:
                index = max(calls)
                call = calls[index]
                if latest[rank] > index:
                    continue  # Another thread goes on.
            elif last is not None and last.ranks > 1 and self._seen.is_queued(rank, last.name):
                index, call = -1, last
            else:
                continue
            ended = self._seen.ended(rank, call.communicator)
            number = ended + sum(c.communicator == call.communicator and c.ranks > 1 for c in calls.values())
            key = (rank, index if index >= 0 else -1 - ended)
            since_s = self.still.since_s(rank, index if index >= 0 else latest[rank])
            seen[key] = self._since.get(key, since_s)
            found[rank] = Blocked(call, number if call.ranks > 1 else 0, self.still.clock_s - seen[key])
        self._since = seen
        return found

    def _diagnose(
        self, blocked: Mapping[int, Blocked], begun: Mapping[int, Counter[int]], world_size: int | None, status_s: float
    ) -> Hang | None:
        """The Hang that explains the ranks that wait; None where they wait for nobody."""
        waits: dict[tuple[int, int], list[int]] = {}
        # A call that is only queued, and to which all have come, holds nobody: a device may compute for long before it.
        blocked = {
            rank: one
            for rank, one in blocked.items()
            if (one.call.end_s == OPEN_S and not self._seen.is_queued(rank, one.call.name))
            or any(
                begun.get(member, Counter())[one.call.communicator] < one.number
                for member in self._seen.members(one.call.communicator, one.call.ranks, begun, world_size)[0]
            )
        }
        for rank, one in blocked.items():
            if one.age_s >= status_s:
                waits.setdefault(_place(one), []).append(rank)
        if not waits:
            return None
        stalls: dict[tuple[int, int], Stall | None] = {}
        behind: dict[tuple[int, int], list[int]] = {}
        unknown: dict[tuple[int, int], int] = {}
        for (communicator, number), came in waits.items():
            members, hidden = self._seen.members(communicator, blocked[came[0]].call.ranks, begun, world_size)
            if number:
                made = {r: begun.get(r, Counter())[communicator] for r in members if r not in self._seen.lost}
                progress = {r: Progress(min(count, number - 1), count) for r, count in made.items()}
                names = {r: _plain(b.call.name) for r, b in blocked.items() if _place(b) == (communicator, number)}
                found = stalls[communicator, number] = stall(progress, names)
                missing: Sequence[int] = found.behind if found is not None and found.kind == "missing" else ()
            else:
                # Whose message it is, is not known: not of one that has ended while another computes.
                missing = [r for r in begun if r not in self._seen.lost and self._where(r).state != "ended"]
            behind[communicator, number] = [r for r in missing if r not in blocked]
            unknown[communicator, number] = hidden
        ages_s = {key: max(blocked[rank].age_s for rank in came) for key, came in waits.items()}
        key = max(waits, key=lambda k: (bool(behind[k] or unknown[k]), k[1] > 0, ages_s[k]))
        communicator, number = key
        together = {r: b.call.name for r, b in blocked.items() if _place(b) == key}
        found = stalls.get(key)
        odd = [*found.behind] if found is not None and found.kind == "order" else []
        call = blocked[waits[key][0]].call
        if behind[key] or unknown[key]:
            kind, culprits = "missing", sorted(behind[key])
            others = {r: self._seen.last[r].name for r in culprits if r in self._seen.last}
        elif not number or min(one.age_s for one in blocked.values()) < status_s:
            # Ranks that wait for messages, as an idle listener does; or somebody has only just come.
            return None
        elif odd:
            # Without a majority all of them are named.
            call = next((blocked[r].call for r in together if r not in odd), call)
            kind, culprits, others = "order", odd, {r: together[r] for r in odd}
        else:
            apart = {r: b for r, b in blocked.items() if r not in together}
            # Of those that came some may have died in the call.
            lost_in_it = [r for r in together if self._where(r).state in DECISIVE] if not apart else []
            kind, culprits = ("order", sorted(apart)) if apart else ("call", lost_in_it)
            others = {r: f"{b.call.name} {b.number or ''}".strip() for r, b in apart.items()}
        where = tuple(self._where(rank) for rank in sorted(culprits))
        inside = tuple(sorted(r for r in together if r not in culprits))
        longest_s = self._seen.longest_s(communicator, call.name)
        limit_s = max(self.thresholds.patience_s, PATIENCE_TIMES * longest_s, status_s)
        lost = [one.state in DECISIVE for one in where]
        hopeless = kind == "order" or (any(lost) if number else bool(lost) and all(lost))
        return Hang(
            kind, call.name, number, communicator, call.nbytes, where, others, inside, unknown[key], ages_s[key],
            hopeless or ages_s[key] > limit_s,
        )  # fmt: skip


def _place(blocked: Blocked) -> tuple[int, int]:
    """Return the communicator and the number of the call that a rank is in."""
    return blocked.call.communicator, blocked.number


def _plain(name: str) -> str:
    """A call and that which only starts it are one."""
    return name.removeprefix("start_")


def join_ranks(ranks: Sequence[int]) -> str:
    """Ranks in words, at most MAX_SHOWN by number."""
    more = f" and {len(ranks) - MAX_SHOWN} more" if len(ranks) > MAX_SHOWN else ""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks[:MAX_SHOWN])) + more
