"""What a pipeline does: actions, how they are written, and the one table of what needs what.

Letters as in the zero-bubble papers: F forward, B gradient of the input, W gradient of the weights, BW both in one
(PyTorch writes I for our B and B for our BW). AR, RS and AG are the data-parallel all-reduce, reduce-scatter and
all-gather of a stage; they appear in simulated timelines, never in plans.
"""

import re
from typing import TYPE_CHECKING, NamedTuple

from lanterne.errors import ScheduleError

if TYPE_CHECKING:
    from lanterne.pipeline.plan.placement import Placement

# Columns of plans hold a kind as its index here.
KINDS = ("F", "B", "W", "BW")
DATA_PARALLEL_KINDS = ("AR", "RS", "AG")

# kind -> what it needs: (kind, how many stages further along the microbatch's route). A B that is needed may be done by
# a BW.
NEEDS: dict[str, tuple[tuple[str, int], ...]] = {
    "F": (("F", -1),),
    "B": (("F", 0), ("B", +1)),
    "W": (("B", 0),),
    "BW": (("F", 0), ("B", +1)),
}
# kind -> the kinds that together do the same work; a plan uses one side or the other for each stage and microbatch.
FUSED = {"BW": ("B", "W")}

# Nine digits fit the int32 columns of plans.
_WORD = re.compile(r"(F|BW|B|W|AR|RS|AG)(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9})/(\d{1,9}))?", re.ASCII)


class Action(NamedTuple):
    """One piece of work: `kind` of `microbatch` on `stage`; with `parts` > 1 the `part`-th (from 1) of that many equal
    pieces.

    Printed as `F2.0` (stage 2, microbatch 0) and `W2.0.1/4` (its first quarter); `Action.parse` is the inverse.
    """

    kind: str
    stage: int
    microbatch: int
    part: int = 1
    parts: int = 1

    def __str__(self) -> str:
        word = f"{self.kind}{self.stage}.{self.microbatch}"
        return word if self.parts == 1 else f"{word}.{self.part}/{self.parts}"

    @classmethod
    def parse(cls, text: object) -> "Action":
        """The action written as `text`.

        Raises:
            ScheduleError: no action, or a part outside 1 to parts.
        """
        match = _WORD.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ScheduleError(
                f"action: got {text!r}, expected KIND STAGE.MICROBATCH[.PART/PARTS] such as F2.0 or W2.0.1/4"
            )
        part, parts = int(match[4] or 1), int(match[5] or 1)
        if not 1 <= part <= parts:
            raise ScheduleError(f"action {text}: got part {part} of {parts}, expected 1 to {parts}")
        return cls(match[1], int(match[2]), int(match[3]), part, parts)


def dependencies(action: Action, placement: "Placement") -> tuple[Action, ...]:
    """The actions that must end before `action` starts, as whole actions; a B among them may be done by a BW.

    A part after the first needs only the part before it: what the first part needed has ended by then.

    There are none for the first stage's F.

    Args:
        action: of one of KINDS.
        placement: knows the route's next stage up and down.
    """
    if action.part > 1:
        return (action._replace(part=action.part - 1),)
    found = []
    for kind, step in NEEDS[action.kind]:
        stage = placement.step(action.stage, step)
        if stage is not None:
            found.append(Action(kind, stage, action.microbatch))
    return tuple(found)
