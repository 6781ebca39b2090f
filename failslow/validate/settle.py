"""Repeat a test that says that something is slow, until it no longer does, or has said so often enough."""

from collections.abc import Callable
from typing import TypeAlias, TypeVar

from lanterne.failslow.validate.judge import SLOW_LINK_STARVED, SlowQuantity

Round = TypeVar("Round")
# A rank, or a directed link.
Key = TypeVar("Key")
SlowOnes: TypeAlias = dict[Key, SlowQuantity]


def settle(
    first: Round,
    verdict: Callable[[list[Round]], tuple[SlowOnes[Key], SlowOnes[Key]]],
    again: Callable[[SlowOnes[Key]], Round],
    least: int,
    most: int,
) -> tuple[SlowOnes[Key], SlowOnes[Key]]:
    """What is slow by all measurements, and of what that cannot be said.

    What else runs on a machine makes a test slow now and then, hardly ever fast: so further measurements acquit what
    was only disturbed.

    Args:
        first: a measurement of everything.
        verdict: of [measurement, ...] gives (slow, unsure), by what they are about.
        again: of what is slow or unsure measures that once more, beside healthy peers.
        least, most: further measurements where all is clear, and where that never comes.

    Returns:
        (slow, unsure), the last verdict; what is not clearly slow, nor by much, is unsure.
    """
    rounds = [first]
    slow, unsure = verdict(rounds)
    while slow or unsure:
        is_clear = not unsure and all(one.is_clear for one in slow.values())
        if len(rounds) > (least if is_clear else most):
            break
        rounds.append(again({**slow, **unsure}))
        slow, unsure = verdict(rounds)
    # What never became clear is blamed only if it is slow by more than a busy machine explains.
    blamed = {key: one for key, one in slow.items() if one.is_clear or one.ratio >= SLOW_LINK_STARVED}
    return blamed, {key: one for key, one in (slow | unsure).items() if key not in blamed}
