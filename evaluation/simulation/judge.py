"""What must hold of a simulated job, whatever befell it."""

import re
from collections.abc import Mapping, Sequence
from math import inf

import numpy as np

from evaluation.simulation.baton import Actor
from evaluation.simulation.calls import RankOutcome
from evaluation.simulation.fate import Fate
from evaluation.simulation.network import SimulatedNetwork, SimulatedSocket
from evaluation.simulation.scenario import BETWEEN_RANKS, Scenario
from lanterne.collectives.message_lanes import CONTROL_LANE, HEADER_LANE
from lanterne.errors import LanterneError, PeerFailed, TransportTimeout
from lanterne.transport import duplex, wire
from lanterne.transport.base import LANE_BITS
from lanterne.transport.local import LocalWorld
from lanterne.transport.rails.rail import GREETING

# Who falls within so many seconds after another may be named in its place.
TOGETHER_S = 1.5
# Where processes only end, the others know so much later at most.
TOLD_S = 3.0
# What guards say of ranks that were killed.
KILLED = "it was killed by signal 9"


class Judge:
    """Says what was wrong, in `problems`.

    Args:
        timeout_s: of the ranks' waits.
    """

    def __init__(
        self,
        scenario: Scenario,
        ranks: list[RankOutcome],
        actors: Mapping[int, Actor],
        fate: Fate,
        network: SimulatedNetwork,
        timeout_s: float,
    ) -> None:
        self.problems: list[str] = []
        self.scenario = scenario
        self.ranks = ranks
        self.actors = actors
        self.fallen: list[tuple[float, int]] = fate.fallen
        self.thawed_s: dict[int, float] = fate.thawed_s
        self.network = network
        self._timeout_s = timeout_s
        self._strange = fate.strange

    def judge(self, local: LocalWorld | None) -> None:
        """All of it; `local`, the world of ranks that are threads."""
        fell = {rank for _, rank in self.fallen}
        for rank, outcome in enumerate(self.ranks):
            self.problems += [f"wrong: rank {rank}: {line}" for line in outcome.wrong]
            for array, copy in outcome.kept:
                if not np.array_equal(array, copy):
                    self.problems.append(f"written later: rank {rank}: an array changed after its call had returned")
            actor = self.actors[rank]
            if rank in fell or actor.is_killed:
                continue
            self._judge_error(rank, outcome)
            self._judge_end(rank, outcome)
            left = [sock for sock in self.network.by_fd.values() if sock.owner is actor]
            if left:
                self.problems.append(f"descriptors: rank {rank} leaves {len(left)} of {left[0].peer_name} open")
        for each in self.network.baton.actors:
            if each.error is not None:
                self.problems.append(f"crash: {each.name}: {type(each.error).__name__}: {each.error}")
        for sock in self.network.opened if self.scenario.transport == "tcp" else ():
            self._judge_stream(sock)
        if local is not None and not fell:
            # Receives of control messages, and of what a mailbox hears, stay posted.
            lasting = CONTROL_LANE, HEADER_LANE
            keys = [key for key in local.unmatched if key[2] & ((1 << LANE_BITS) - 1) not in lasting]
            if keys:
                self.problems.append(f"memory: messages are left of (source, destination, tag) {keys}")

    def _judge_error(self, rank: int, outcome: RankOutcome) -> None:
        error = outcome.error
        if error is None:
            return
        what = f"rank {rank}: {type(error).__name__}: {error}"
        if not isinstance(error, LanterneError):
            self.problems.append(f"crash: {what}")
        elif not self.fallen:
            # Stops add up where ranks wait for each other.
            stopped_s = sum(event.seconds for event in self.scenario.events)
            if stopped_s < self._timeout_s - TOGETHER_S and not self._is_cut_off():
                self.problems.append(f"false alarm: {what}")
        elif not self._is_excused(rank):
            before = [each for at_s, each in self.fallen if at_s <= outcome.error_s]
            # One that froze first may have gone on by then.
            down = [each for each in self.fallen if self.thawed_s.get(each[1], inf) > outcome.error_s] or self.fallen
            firsts = _firsts(down) | _firsts(sorted((self._seen_s(at_s, each), each) for at_s, each in down))
            if not named(error) & set(before):
                self.problems.append(f"nobody named: {what}; fell: {sorted(set(before))}")
            elif not named(error) & firsts:
                self.problems.append(f"second named: {what}; first fell {sorted(firsts)}")
            else:
                self._judge_news(error, what, outcome.error_s)

    def _seen_s(self, at_s: float, rank: int) -> float:
        """When the others can know that `rank` has fallen at `at_s`.

        Of one that froze, and of one that the store did not know yet, once they have waited for it: somebody else that
        falls before that is the first of whom they hear.
        """
        return at_s + self._timeout_s * (rank in self.thawed_s or rank in self._strange)

    def _is_cut_off(self) -> bool:
        """Whether as many paths may have died as join two ranks: two rails, and the first path where there is one."""
        dying = sum(event.kind in (*BETWEEN_RANKS, "loss", "cut", "stop") for event in self.scenario.events)
        return dying >= {"spare": 3, "delegates": 2}.get(self.scenario.transport, inf)

    def _judge_news(self, error: LanterneError, what: str, error_s: float) -> None:
        """Where processes only end, that is known soon, and from whoever knows best."""
        kinds = {event.kind for event in self.scenario.events}
        is_guarded = self.scenario.has("guards")
        if not kinds <= {"kill", "restart", "loss"} | ({"quit"} if is_guarded else set()):
            return
        last_s = max(at_s for at_s, _ in self.fallen)
        if error_s > last_s + TOLD_S and (is_guarded or not self._strange):
            self.problems.append(f"slow: {what}, {error_s - last_s:.1f} s after the last had fallen")
        if (
            is_guarded
            and kinds <= {"kill"}
            and isinstance(error, PeerFailed)
            and error.reason != KILLED
            and error.rank in {rank for _, rank in self.fallen}
        ):
            self.problems.append(f"hearsay: {what}, expected what its guard says: {KILLED}")

    def _judge_end(self, rank: int, outcome: RankOutcome) -> None:
        """Whoever lives gets through all calls, with the same survivors as they."""
        befallen = {rank for event in self.scenario.events for rank in (event.rank, event.other)}
        if rank in befallen or not all(each.has_opened for each in self.ranks):
            return
        if outcome.gave_up is not None:
            self.problems.append(f"gave up: rank {rank}: {type(outcome.gave_up).__name__}: {outcome.gave_up}")
        elif self.scenario.transport in ("store", "delegates") and self.fallen:
            return  # They do not go on.
        elif outcome.has_ended and outcome.complete < len(self.scenario.calls):
            self.problems.append(f"lost: rank {rank} ended after {outcome.complete} calls")
        for group in outcome.groups:
            for other in group:
                if other not in befallen and group not in self.ranks[other].groups:
                    self.problems.append(f"apart: rank {rank} goes on with ranks {group}, rank {other} does not")

    def _is_excused(self, rank: int) -> bool:
        """Whether a rank cannot know who fell.

        Because something befell itself. Because a path was cut for long: all are in the same call then, and nobody is
        absent. Or because, with delegates, a rank froze: who waits for one that waits for it names that. Or because
        somebody froze while rails were made: ranks make theirs one after the other, and who waits
        for one serves nobody, so who is held up looks as who holds up. Or because it was through its calls when a
        delegate was killed: of that hear those only that wait for its messages, and they leave.
        """
        is_through = self.ranks[rank].complete == len(self.scenario.calls)
        kinds = {event.kind for event in self.scenario.events}
        return (
            rank in {event.rank for event in self.scenario.events}
            or "partition" in kinds
            or (self.scenario.transport == "delegates" and "freeze" in kinds)
            or ("delegate" in kinds and is_through)
            or ("freeze" in kinds and not all(each.has_opened for each in self.ranks))
        )

    def _judge_stream(self, sock: SimulatedSocket) -> None:
        """Over a connection no message is sent twice."""
        if sock.owner.name == "store" or sock.peer_name == "store":
            return
        stream = bytes(sock.sent)
        # Of who connected: an answer and a greeting; of who accepted: a challenge and a verdict.
        start = wire.CHALLENGE_NBYTES + wire.VERDICT_NBYTES if sock.was_accepted else wire.ANSWER_NBYTES + GREETING.size
        seen: set[tuple[int, int]] = set()
        while start + duplex.HEADER.size <= len(stream):
            kind, tag, number, nbytes = duplex.HEADER.unpack_from(stream, start)
            start += duplex.HEADER.size
            if kind in (duplex.DATA, duplex.LONG):
                start += nbytes
                if (tag, number) in seen:
                    ends = f"{sock.owner.name} to {sock.peer_name}"
                    self.problems.append(f"sent twice: {ends}: message {number} of tag {tag}")
                    return
                seen.add((tag, number))


def _firsts(fallen: Sequence[tuple[float, int]]) -> set[int]:
    """Those that may be named, of (when, who) in order."""
    return {rank for at_s, rank in fallen if at_s <= fallen[0][0] + TOGETHER_S}


def named(error: BaseException) -> set[int]:
    """The ranks that an error blames."""
    if isinstance(error, PeerFailed):
        return {error.rank}
    if isinstance(error, TransportTimeout) and error.peers:
        return set(error.peers)
    return {int(text) for text in re.findall(r"rank (\d+)", str(error))}
