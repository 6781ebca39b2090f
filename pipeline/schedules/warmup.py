"""The shape that 1F1B, ZB-H1 and ZB-H2 share: warm-up forwards, then one F and one B in turn, then the rest."""

from lanterne.pipeline.plan.action import Action


def alternate(stage: int, microbatches: int, warmup: int, backward: str, weight_lag: int | None = None) -> list[Action]:
    """The actions of one stage: `warmup` F, then F and backward in turn while there are F, then the backwards that are
    left.

    Args:
        stage, microbatches: whose, and how many.
        warmup: forwards before the first pair.
        backward: kind of the backward, B or BW.
        weight_lag: with B, the W of microbatch i comes right after the B of microbatch i + weight_lag, or at the end.
    """
    warmup = min(warmup, microbatches)
    actions = [Action("F", stage, i) for i in range(warmup)]
    for i in range(microbatches):
        if warmup + i < microbatches:
            actions.append(Action("F", stage, warmup + i))
        actions.append(Action(backward, stage, i))
        if weight_lag is not None and i >= weight_lag:
            actions.append(Action("W", stage, i - weight_lag))
    if weight_lag is not None:
        actions += [Action("W", stage, i) for i in range(max(microbatches - weight_lag, 0), microbatches)]
    return actions
