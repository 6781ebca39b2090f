"""A plan as torch.distributed.pipelining reads it: its runtime's file of computing alone, a line for each rank."""

from lanterne.errors import InputError
from lanterne.pipeline.plan.plan import Plan

# Kind -> what torch calls it.
TORCH_KINDS = {"F": "F", "B": "I", "W": "W", "BW": "B"}


def to_torch_csv(plan: Plan) -> str:
    """The text of the file, actions such as 2F0, from which torch 2's `_PipelineScheduleRuntime._load_csv` plans.

    Raises:
        InputError: actions in pieces, which torch does not know.
    """
    lines = []
    for rank, actions in enumerate(plan.ranks):
        for action in actions:
            if action.parts > 1:
                raise InputError(f"plan: got {action} on rank {rank}, expected whole actions: torch knows no pieces")
        lines.append(",".join(f"{each.stage}{TORCH_KINDS[each.kind]}{each.microbatch}" for each in actions))
    return "\n".join(lines) + "\n"
