"""Plans as torch.distributed.pipelining reads them: a line for each rank, of computing alone or with messages.

torch's `_PipelineScheduleRuntime._load_csv` reads both forms, "compute_only" and "compute_comms". An action is a stage,
a word and a microbatch: 2F0, 1SEND_F3; UNSHARD, RESHARD and the words of gradients have no microbatch.
"""

import csv
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple, TypeAlias

from lanterne.errors import InputError, ScheduleError
from lanterne.pipeline.plan.action import Action
from lanterne.pipeline.plan.fields import MOST
from lanterne.pipeline.plan.placement import Placement
from lanterne.pipeline.plan.plan import Plan

# Kind -> what torch calls it.
TORCH_KINDS = {"F": "F", "B": "I", "W": "W", "BW": "B"}
_KINDS = {word: kind for kind, word in TORCH_KINDS.items()}
SEND, RECV, WAIT_SEND = ("SEND_F", "SEND_B"), ("RECV_F", "RECV_B"), ("WAIT_SEND_F", "WAIT_SEND_B")
UNSHARD, RESHARD, REDUCE_GRAD, WAIT_REDUCE_GRAD = OF_STAGE = "UNSHARD", "RESHARD", "REDUCE_GRAD", "WAIT_REDUCE_GRAD"
OVERLAP = "OVERLAP_F_B"
_WORDS = "|".join(sorted((*_KINDS, *SEND, *RECV, *WAIT_SEND), key=len, reverse=True))
_ACTION = re.compile(rf"(\d{{1,9}})(?:({_WORDS})(\d{{1,9}})|({'|'.join(OF_STAGE)}))", re.ASCII)
# An action in our words: B1.0.
_OWN_ACTION = re.compile(r"\b(BW|F|B|W)(\d+)\.(\d+)\b", re.ASCII)
# Two actions that torch runs one after the other, as one: (0F1;3B0)OVERLAP_F_B.
_PAIR = re.compile(rf"\(([^()]*)\){OVERLAP}", re.ASCII)


class TorchAction(NamedTuple):
    """An action of a line: `word` as torch has it, `microbatch` -1 where it has none."""

    stage: int
    word: str
    microbatch: int = -1

    def __str__(self) -> str:
        return f"{self.stage}{self.word}{'' if self.microbatch < 0 else self.microbatch}"

    @property
    def kind(self) -> str | None:
        """The kind of computing that it is; None for what is no computing."""
        return _KINDS.get(self.word)


Rows: TypeAlias = list[list[TorchAction]]


def rows_of(plan: Plan) -> Rows:
    """Return `plan` as torch's actions, of computing alone.

    Raises:
        InputError: actions in pieces, or two routes, which torch does not know.
    """
    if plan.placement.num_routes > 1:
        raise InputError(
            f"plan: got placement {plan.placement.name}, expected one route: torch numbers stages along one"
        )
    pieces = next((action for action in chain.from_iterable(plan.ranks) if action.parts > 1), None)
    if pieces is not None:
        rank = plan.placement.stage_to_rank[pieces.stage]
        raise InputError(f"plan: got {pieces} on rank {rank}, expected whole actions: torch knows no pieces")
    return [[TorchAction(each.stage, TORCH_KINDS[each.kind], each.microbatch) for each in own] for own in plan.ranks]


def in_torch_words(text: str) -> str:
    """Return `text` with torch's words for the actions that it names: 1I0 for B1.0."""
    return _OWN_ACTION.sub(lambda match: f"{match[2]}{TORCH_KINDS[match[1]]}{match[3]}", text)


def to_text(rows: Iterable[Iterable[TorchAction]]) -> str:
    """Return the text of the file."""
    return "".join(",".join(map(str, row)) + "\n" for row in rows)


def to_torch_csv(plan: Plan) -> str:
    """Return the text of the file of computing alone, in which torch places messages itself; raises as `rows_of`."""
    return to_text(rows_of(plan))


def parse_rows(text: str) -> Rows:
    """Return the actions of a file of either form; in one of computing alone cells may be empty.

    Raises:
        ScheduleError: no rank, a cell that is no action, an empty one beside messages, or too many actions.
    """
    try:
        lines = list(csv.reader(text.splitlines()))
    except csv.Error as error:
        raise ScheduleError(f"is no CSV: {error}") from error
    rows = [list(_parsed_row(rank, cells)) for rank, cells in enumerate(lines)]
    if not any(rows):
        raise ScheduleError("got no action, expected a line for each rank, of actions such as 0F0")
    if any(action.kind is None for row in rows for action in row):
        for rank, cells in enumerate(lines):
            if empty := [place for place, cell in enumerate(cells, 1) if not cell.strip()]:
                raise ScheduleError(f"rank {rank}, cell {empty[0]}: got an empty cell, expected none beside messages")
    if sum(map(len, rows)) > 16 * MOST:
        raise ScheduleError(f"got more than {16 * MOST} actions, expected fewer")
    return rows


def _parsed_row(rank: int, cells: list[str]) -> Iterator[TorchAction]:
    for place, cell in enumerate(cells, 1):
        pair = _PAIR.fullmatch(cell.strip())
        for word in pair[1].split(";") if pair else [cell]:
            if not word.strip():
                continue
            match = _ACTION.fullmatch(word.strip())
            if match is None:
                raise ScheduleError(
                    f"rank {rank}, cell {place}: got {word[:40]!r}, expected an action such as 2F0 or 1SEND_F3"
                )
            stage, of_microbatch, microbatch, of_stage = match.groups()
            yield TorchAction(int(stage), of_microbatch or of_stage, int(microbatch or -1))


def plan_of(rows: Rows) -> Plan:
    """Return the plan of what `rows` compute, not checked.

    Raises:
        ScheduleError: no computing, stages that are not 0 to some last one, or a stage on two ranks.
    """
    actions = [
        [Action(each.kind, each.stage, each.microbatch) for each in row if each.kind is not None] for row in rows
    ]
    holders: dict[int, set[int]] = {}
    for rank, row in enumerate(actions):
        for action in row:
            holders.setdefault(action.stage, set()).add(rank)
    last = max(holders, default=-1)
    for stage in range(last + 1 if last < MOST else 0):
        if len(holders.get(stage, ())) != 1:
            got = f"on ranks {sorted(holders[stage])}" if stage in holders else "on no rank"
            raise ScheduleError(f"stage {stage}: got its computing {got}, expected one rank for each stage to {last}")
    if not 0 <= last < MOST or not all(actions):
        raise ScheduleError("got a rank that computes nothing, expected F and B, or I and W, on each")
    placement = Placement("custom", len(rows), tuple(holders[stage].pop() for stage in range(last + 1)))
    microbatches = 1 + max(action.microbatch for action in chain.from_iterable(actions))
    return Plan.from_actions(actions, placement, microbatches)
