"""How long to wait for the last rank before the others start without it, and with which algorithm: a pure function.

The question of ski rental: each moment of waiting is lost if the rank is late, and the costlier late algorithm was
started in vain if it is not. A window no longer than the critical delay, from which on starting without the rank is
cheaper, never costs more than that window above knowing the delay; within that bound the delays of past calls choose.
"""

from typing import NamedTuple

# However cheap the late algorithm: ranks that come this close together, in parts of the ordinary algorithm's time, are
# not late.
LEAST_WINDOW = 0.01
# A past delay is covered by a window this much longer.
COVER = 1.25
# Windows that past delays suggest, at most so many are weighed.
MAX_COVERS = 4
MAX_OPTIONS = 16
# A past delay counts this much of the one after it, so that some five calls make the older ones forgotten.
FADING = 0.7


class Option(NamedTuple):
    """A late algorithm as text ("late_join/56"), the seconds of what goes before the late rank comes, and after."""

    choice: str
    before_s: float
    join_s: float


class Policy(NamedTuple):
    """What a call costs: `normal_s` with the ordinary algorithm; `options`, a tuple of Option, empty: nothing else."""

    normal_s: float
    options: tuple = ()


def critical_delay_s(policy, option):
    """The delay from which on `option`, begun at once, ends before the ordinary algorithm would."""
    return max(LEAST_WINDOW * policy.normal_s, option.before_s + option.join_s - policy.normal_s)


def cost_s(policy, option, window_s, delay_s):
    """Seconds from the last but one rank's arrival to the end, if the last one comes `delay_s` after it."""
    if delay_s <= window_s:
        return delay_s + policy.normal_s
    return max(window_s + option.before_s, delay_s) + option.join_s


def saving_s(policy, delay_s):
    """Seconds that starting without the last rank, at once, would have saved a call to which it came `delay_s` late."""
    late_s = min(max(option.before_s, delay_s) + option.join_s for option in policy.options)
    return max(0.0, delay_s + policy.normal_s - late_s)


def decide(policy, delays_s=()):
    """(window_s, choice): the least mean cost over the past delays, oldest first, else in the order of the options.

    Recent delays weigh more (FADING). Without past delays: the first option's critical delay.

    Cost: some 50 us for 16 delays and two options.
    """
    if not delays_s:
        option = policy.options[0]
        return critical_delay_s(policy, option), option.choice
    ranked, middle_s = [], sorted(delays_s)[len(delays_s) // 2]
    weighed = [(FADING**age, delay_s) for age, delay_s in enumerate(reversed(delays_s))]
    for order, option in enumerate(policy.options):
        critical_s = critical_delay_s(policy, option)
        least_s = LEAST_WINDOW * policy.normal_s
        covers_s = sorted(COVER * delay_s for delay_s in delays_s if least_s < COVER * delay_s < critical_s)
        for window_s in {critical_s, least_s, *covers_s[:: -(-len(covers_s) // MAX_COVERS) or 1]}:
            total_s = sum(weight * cost_s(policy, option, window_s, delay_s) for weight, delay_s in weighed)
            # As good as another: the longer one where ranks are rarely late, the shorter one where they are.
            ranked.append((total_s, order, window_s if middle_s > critical_s else -window_s))
    _, order, window_s = min(ranked)
    return abs(window_s), policy.options[order].choice


def to_text(policy):
    """`policy` in one line, for the wire."""
    parts = [repr(float(policy.normal_s))]
    parts += [f"{option.choice} {option.before_s!r} {option.join_s!r}" for option in policy.options]
    return ";".join(parts)


def from_text(text):
    """The Policy that `to_text` wrote.

    Raises:
        ValueError: it did not.
    """
    head, *rest = text.split(";")
    if len(rest) > MAX_OPTIONS:
        raise ValueError(f"policy: got {len(rest)} options, expected at most {MAX_OPTIONS}")
    options = []
    for part in rest:
        choice, before_s, join_s = part.split(" ")
        options.append(Option(choice, _seconds(before_s), _seconds(join_s)))
    return Policy(_seconds(head), tuple(options))


def _seconds(text):
    number = float(text)
    if not 0 <= number < 1e9:
        raise ValueError(f"policy: got {text}, expected seconds")
    return number
