"""any_arrival of ranks that share nodes: the automaton's ranks are nodes, whose ranks carry a part each.

A node takes part once all its ranks have arrived. Rails, and who of a node handles a chunk, are those of
hierarchical/compose.py. In the first round of a node its ranks add up each chunk at the owner: so what crosses in later
rounds waits for no rank beside it. Once the owner has a result it gives it to the others.
"""

from itertools import zip_longest
from typing import TYPE_CHECKING, TypeAlias

from lanterne.collectives.algorithms.late.any_arrival_rounds import Planner
from lanterne.collectives.schedule.ir import COPY, REDUCE

if TYPE_CHECKING:
    from lanterne.collectives.algorithms.hierarchical.compose import Nodes

# Source and target, ranks; chunk; op; whether that completes a sum.
Transfer: TypeAlias = tuple[int, int, int, int, bool]
# Transfers of which no rank sends, or receives, more than one, where nodes have as many ranks each.
Step: TypeAlias = list[Transfer]


class NodeRounds:
    """The rounds of an all-reduce of `num_chunks` chunks over `nodes`.

    Attributes:
        present: how many ranks have arrived.
    """

    def __init__(self, nodes: "Nodes", num_chunks: int, lag: int = 0) -> None:
        self.present = 0
        self._nodes = nodes
        self._num_chunks = num_chunks
        self._rails = max(map(len, nodes))
        # Of each rail.
        self._chunks = range(-(-num_chunks // self._rails))
        self._planner = Planner(len(nodes), len(self._chunks), lag)
        self._node_of = {rank: node for node, ranks in enumerate(nodes) for rank in ranks}
        self._absent = [len(ranks) for ranks in nodes]
        # By role, the node's ranks; and the roles that have had no round yet.
        self._roles: list[tuple[int, ...]] = []
        self._fresh: list[int] = []

    @property
    def number(self) -> int:
        """The round that `round` makes next."""
        return self._planner.number

    @property
    def is_done(self) -> bool:
        """Whether all ranks have all results."""
        return self._planner.is_done

    def arrive(self, rank: int) -> None:
        """Let `rank` take part from the next round on."""
        self.present += 1
        node = self._node_of[rank]
        self._absent[node] -= 1
        if not self._absent[node]:
            self._fresh.append(len(self._roles))
            self._roles.append(self._nodes[node])
            self._planner.arrive()

    def round(self) -> list[Step]:
        """Return the steps of the next round; none where nothing can be done."""
        transfers = self._planner.round().tolist()
        sums = {
            role: [step for chunk in self._chunks for step in self._inside(role, chunk, REDUCE)] for role in self._fresh
        }
        self._fresh.clear()
        across: Step = []
        results: dict[int, list[Step]] = {}
        for source, target, chunk, op in transfers:
            has_result = self._planner.has_result(target, chunk)
            completes = has_result and op == REDUCE
            ends = self._roles[source], self._roles[target]
            for rail in self._rails_of(chunk):
                sender, receiver = (ranks[rail % len(ranks)] for ranks in ends)
                across.append((sender, receiver, rail, op, completes))
            if has_result:
                results.setdefault(target, []).extend(self._inside(target, chunk, COPY))
        return [step for step in (*_beside(sums), across, *_beside(results)) if step]

    def _rails_of(self, chunk: int) -> range:
        """Return the chunks of the buffer that are `chunk` of each rail."""
        return range(chunk * self._rails, min(self._num_chunks, (chunk + 1) * self._rails))

    def _inside(self, role: int, chunk: int, op: int) -> list[Step]:
        """Return how the ranks of a node add up the parts of `chunk`, or get its results: of another rank each step."""
        ranks, steps = self._roles[role], list[Step]()
        for shift in range(1, len(ranks)):
            step: Step = []
            for rail in self._rails_of(chunk):
                owner, other = ranks[rail % len(ranks)], ranks[(rail + shift) % len(ranks)]
                ends = (owner, other) if op == COPY else (other, owner)
                step.append((*ends, rail, op, False))
            steps.append(step)
        return steps


def _beside(steps: dict[int, list[Step]]) -> list[Step]:
    """Return the steps of several nodes, those of each in their order, at the same time."""
    return [[each for step in its for each in step] for its in zip_longest(*steps.values(), fillvalue=[])]
