"""How long to wait for the last ranks before the others start without them, and by which algorithm: pure functions.

The question of ski rental: each moment of waiting is lost if the rank is late, and the costlier late algorithm was
started in vain if it is not. A window no longer than the critical delay, from which on starting without the rank is
cheaper, never costs more than that window above knowing the delay; within that bound the delays of past calls choose.
A start without several ranks takes past calls that would have gained by it; else the board waits for all but the last.
So does a start with the first two ranks by an algorithm that takes in the others as they arrive (ANY).

Delays of a call are its Gaps.
"""

import functools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeAlias

from lanterne.transport.board.arrival_bound import least_after_s

# Of a call: from the last but one arrival to the last, from the one before to that, and so on; seconds.
Gaps: TypeAlias = Sequence[float]
MAX_OPTIONS = 16
# Ranks without which a call may begin, at most.
MAX_LATE = 4
# The `late` of an Option that takes in ranks as they arrive.
ANY = 0
# Gaps of a call that are kept: all of 16 ranks, as many as such an Option is for.
MAX_GAPS = 15
# What such a call takes, in parts of the bound on it; 8 ranks, 16 MiB, in virtual time: 1.03 to 1.04.
OVER_BOUND = 1.03

# Its choice: chunks, and how many rounds more than the slowest rank has done may be begun.
_ANY_CHOICE = re.compile("any_arrival/[1-9][0-9]{0,2}/[1-9][0-9]{0,2}")

# However cheap the late algorithm: ranks that come this close together, in parts of the ordinary algorithm's time,
# are not late.
LEAST_WINDOW = 0.01  # jitter of ranks that are not late
# A past delay is covered by a window this much longer.
COVER = 1.25  # jitter of past delays
# So many past calls say whether ranks are punctual.
JITTER_CALLS = 3  # a job's first call has delays of its own
# Windows that past delays suggest, at most so many are weighed.
MAX_COVERS = 4  # 50 us a decision
# What calls took corrects what they are predicted to take by such a factor at most.
MOST_FACTOR = 2.0  # chosen: more is a disturbance, not an algorithm
# A start without several ranks is to save such a part of what the past calls would have taken otherwise.
# noise of a model; 8 hosts at 25 MB/s over tcp, three late by 0.5, 1, 1.5: with 0.05 1.43 of s/rate, now 1.23
LEAST_SAVING = 0.03
# A past delay counts this much of the one after it, so that some five calls make the older ones forgotten.
FADING = 0.7  # some five calls forget the past


class Option(NamedTuple):
    """A late algorithm as text ("late_join/56"), the seconds of what goes before the `late` ranks come, and after.

    Attributes: `late`, or ANY: it begins with two ranks, `before_s` is what a port takes for the buffer, and `join_s`
    what it takes where that is the bound; `ranks`, which may be late; empty: any.
    """

    choice: str
    before_s: float
    join_s: float
    late: int = 1
    ranks: tuple[int, ...] = ()

    def fits(self, absent: Collection[int]) -> bool:
        """Whether a call may begin by it without the ranks `absent`."""
        if self.late == ANY:
            return len(absent) > 1
        return len(absent) == self.late and (not self.ranks or all(rank in self.ranks for rank in absent))


class Policy(NamedTuple):
    """What a call costs: `normal_s` with the ordinary algorithm; `options`, where empty, nothing else.

    Attributes: `port_of`, by rank the port that it shares with others, for an Option of ANY; empty: each has its own.
    """

    normal_s: float
    options: tuple[Option, ...] = ()
    port_of: tuple[int, ...] = ()


def choice_name(choice: str) -> str:
    """Return the algorithm of an Option's choice; "" stays "", the ordinary one."""
    return choice.partition("/")[0]


def corrected(policy: Policy, factors: Mapping[str, float]) -> Policy:
    """Return `policy` with its options as much slower or faster as they were beside the ordinary algorithm.

    Those that are slower than that in any case are left out.

    Args:
        factors: by algorithm, "" the ordinary one, the time of past calls over the predicted. What slows all alike, or
            is not the network's, such as a first call's compiler, changes nothing; so an algorithm counts by its factor
            over the ordinary one's.
    """
    usual = factors.get("", 1.0)
    options = []
    for option in policy.options:
        factor = factors.get(choice_name(option.choice), usual) / usual
        join_s = option.join_s * min(MOST_FACTOR, max(1 / MOST_FACTOR, factor))
        # What takes longer than the ordinary one whenever the late rank arrives is left.
        if factor <= 1 or join_s < policy.normal_s:
            options.append(option._replace(join_s=join_s))
    return policy._replace(options=tuple(options))


def as_predicted(policy: Policy, option: Option) -> Option:
    """Return `option` as it was before `corrected` changed its `join_s`."""
    return next((each for each in policy.options if each._replace(join_s=option.join_s) == option), option)


def scaled(policy: Policy, part: float) -> Policy:
    """Return `policy` for a call of `part` of the bytes: all its times are those of bytes, not of starts."""
    options = (each._replace(before_s=each.before_s * part, join_s=each.join_s * part) for each in policy.options)
    return policy._replace(normal_s=policy.normal_s * part, options=tuple(options))


def without_any(policy: Policy) -> Policy:
    """Return `policy` without the Option that takes in ranks as they arrive."""
    return Policy(policy.normal_s, tuple(option for option in policy.options if option.late != ANY))


def at_ports(arrivals_s: Mapping[int, float], port_of: Sequence[int]) -> list[float]:
    """Return when the last rank of each port arrived, of `arrivals_s` by rank."""
    found: dict[int, float] = {}
    for rank, at_s in arrivals_s.items():
        port = port_of[rank] if port_of else rank
        found[port] = max(at_s, found.get(port, at_s))
    return list(found.values())


def gaps_between(times_s: Iterable[float]) -> tuple[float, ...]:
    """Return the Gaps of a call at which ranks, or ports, arrived at `times_s`."""
    latest_s = sorted(times_s, reverse=True)[: MAX_GAPS + 1]
    return tuple(later_s - before_s for later_s, before_s in pairwise(latest_s)) or (0.0,)


def last_phase_s(policy: Policy, option: Option | None, arrivals_s: Mapping[int, float]) -> float:
    """Return the seconds from the last arrival to the end that are predicted for a call that ran by `option`.

    Args:
        option: None for the ordinary algorithm.
        arrivals_s: by rank, of all.
    """
    if option is None:
        return policy.normal_s
    if option.late == ANY:
        return after_spread_s(option, at_ports(arrivals_s, policy.port_of))
    at_s = sorted(arrivals_s.values())
    return max(0.0, option.before_s - (at_s[-1] - at_s[-1 - option.late])) + option.join_s


def critical_delay_s(policy: Policy, option: Option) -> float:
    """The delay from which on `option`, begun at once, ends before the ordinary algorithm would."""
    return max(LEAST_WINDOW * policy.normal_s, option.before_s + option.join_s - policy.normal_s)


def cost_s(policy: Policy, option: Option, window_s: float, delay_s: float) -> float:
    """Seconds from the last but one rank's arrival to the end, if the last one comes `delay_s` after it."""
    if delay_s <= window_s:
        return delay_s + policy.normal_s
    return max(window_s + option.before_s, delay_s) + option.join_s


def likely(policy: Policy, rank: int) -> tuple[Option, ...]:
    """The options that calls are likely to need first where `rank` alone is late, at most four.

    That of a call without a past, and those for ranks that are late by much, by half and by a quarter as much.
    """
    single = [option for option in policy.options if option.fits((rank,))]
    if not single:
        return ()
    most_s = max(option.before_s for option in single)
    best = (min(single, key=lambda option: cost_s(policy, option, 0.0, d)) for d in (most_s, most_s / 2, most_s / 4))
    return tuple(dict.fromkeys((single[0], *best)))


def saving_s(policy: Policy, gaps_s: Gaps) -> float:
    """Seconds that starting at once without the last ranks, whoever they are, would have saved a call."""
    saved_s = [0.0]
    for option in policy.options:
        if option.late == ANY:
            continue
        delay_s = sum(gaps_s[: option.late])
        saved_s.append(delay_s + policy.normal_s - max(option.before_s, delay_s) - option.join_s)
    return max(saved_s)


class Start(NamedTuple):
    """What the board does when all but some ranks have come: wait for `window_s`, then start as `option` says."""

    window_s: float
    option: Option


# By how many ranks are absent: one Start for any, or some for different ranks.
Starts: TypeAlias = Mapping[int, tuple[Start, ...]]


def find_start(starts: Starts, absent: Collection[int]) -> Start | None:
    """The Start without the ranks `absent`; None: the board waits."""
    return next((start for start in starts.get(len(absent), ()) if start.option.fits(absent)), None)


def starts(
    policy: Policy, past: Sequence[Gaps] = (), past_at_ports: Sequence[Gaps] | None = None
) -> dict[int, tuple[Start, ...]]:
    """The Starts of a call.

    Args:
        past: the gaps of past calls, oldest first.
        past_at_ports: those between ports; None: of ranks that have ports of their own, the same.

    Cost: some 50 us for 16 calls and two options; with ANY, 0.4 ms of 8 ranks and 2 ms of 16.
    """
    found: dict[int, tuple[Start, ...]] = {}
    places: dict[tuple[int, ...], list[Option]] = {}
    for option in policy.options:
        if option.late == 1:
            places.setdefault(option.ranks, []).append(option)
    if places:
        delays_s = [gaps_s[0] for gaps_s in past]
        found[1] = tuple(_start(Policy(policy.normal_s, tuple(options)), delays_s) for options in places.values())
    least_s = LEAST_WINDOW * policy.normal_s
    weighed = [(FADING**age, gaps_s) for age, gaps_s in enumerate(reversed(past))]
    for late in sorted({option.late for option in policy.options} - {ANY, 1}):
        options = [option for option in policy.options if option.late == late]
        covers_s = {COVER * gaps_s[late - 1] for gaps_s in past if len(gaps_s) >= late}
        windows_s = [least_s, *sorted(cover_s for cover_s in covers_s if cover_s > least_s)[:MAX_COVERS]]

        def total_s(trial: Starts, late: int = late) -> float:
            return sum(weight * duration_s(policy, trial, gaps_s, late) for weight, gaps_s in weighed)

        candidates = [Start(window_s, option) for option in options for window_s in windows_s]
        best = min(candidates, key=lambda start: total_s(found | {start.option.late: (start,)}))
        if total_s(found | {late: (best,)}) < (1 - LEAST_SAVING) * total_s(found):
            found[late] = (best,)
    return _with_any(policy, found, weighed, past if past_at_ports is None else past_at_ports)


def _with_any(
    policy: Policy,
    found: dict[int, tuple[Start, ...]],
    weighed: Sequence[tuple[float, Gaps]],
    at_ports: Sequence[Gaps],
) -> dict[int, tuple[Start, ...]]:
    """Return `found`, or the start with two ranks where the past calls, each with its weight, would have gained by it.

    Once all but one rank have come together, they start without that as in `found`.
    """
    option = next((option for option in policy.options if option.late == ANY), None)
    most = min((len(gaps_s) for _, gaps_s in weighed), default=0)
    if option is None or most < 3:
        return found
    start = Start(LEAST_WINDOW * policy.normal_s, option)
    trial = {late: starts for late, starts in found.items() if late == 1} | dict.fromkeys(range(2, most), (start,))
    calls = list(zip(weighed, reversed(at_ports), strict=True))
    before_s, now_s = (
        sum(weight * duration_s(policy, each, gaps_s, most, its_s) for (weight, gaps_s), its_s in calls)
        for each in (found, trial)
    )
    return trial if now_s < before_s else found


def _start(policy: Policy, delays_s: Sequence[float]) -> Start:
    """The Start without the last rank that `decide` takes."""
    window_s, choice = decide(policy, delays_s)
    return Start(window_s, next(option for option in policy.options if option.choice == choice))


def duration_s(policy: Policy, starts: Starts, gaps_s: Gaps, absent: int, at_ports_s: Gaps | None = None) -> float:
    """Seconds that a call with these gaps takes from when `absent` ranks are still missing to its end.

    Whoever they are: of Starts for different ranks the first counts.

    Args:
        at_ports_s: the gaps between ports; None: the same.
    """
    if not absent:
        return policy.normal_s
    gap_s, start = gaps_s[absent - 1] if absent <= len(gaps_s) else 0.0, next(iter(starts.get(absent, ())), None)
    if start is None or gap_s <= start.window_s:
        return gap_s + duration_s(policy, starts, gaps_s, absent - 1, at_ports_s)
    if start.option.late == ANY:
        left_s = sum(gaps_s[:absent])
        gaps_s = gaps_s if at_ports_s is None else at_ports_s
        return left_s + _bound(start.option.before_s, tuple(gaps_s), left_s) * start.option.join_s
    return max(start.window_s + start.option.before_s, sum(gaps_s[:absent])) + start.option.join_s


@functools.lru_cache(256)
def _bound(pass_s: float, gaps_s: tuple[float, ...], left_s: float) -> float:
    """Return after_spread_s, in multiples of join_s, of a call that begins `left_s` before the last arrival."""
    arrivals_s = [max(0.0, left_s - before_s) for before_s in accumulate(gaps_s, initial=0.0)]
    return OVER_BOUND * least_after_s(arrivals_s, pass_s) / pass_s


def after_spread_s(option: Option, arrivals_s: Iterable[float]) -> float:
    """Return the s from the last of `arrivals_s`, of all ranks, to the end of a call that takes in any of them."""
    return OVER_BOUND * least_after_s(list(arrivals_s), option.before_s) * option.join_s / option.before_s


def decide(policy: Policy, delays_s: Sequence[float] = ()) -> tuple[float, str]:
    """(window_s, choice): the least mean cost over the past delays, oldest first, else in the order of the options.

    Recent delays weigh more (fading). Without past delays: the first option's critical delay. Where the window covers
    all that is past: of ranks that are punctual the first option, of others what costs least if it was begun in vain.

    Cost: some 50 us for 16 delays and two options.
    """
    if not delays_s:
        option = policy.options[0]
        return critical_delay_s(policy, option), option.choice
    ranked: list[tuple[float, float, int, float]] = []
    middle_s = sorted(delays_s)[len(delays_s) // 2]
    # Where ranks are hardly ever punctual, one that comes after the window hardly ever comes long after it.
    is_jittery = len(delays_s) >= JITTER_CALLS and middle_s > LEAST_WINDOW * policy.normal_s
    soon_s = critical_delay_s(policy, policy.options[0])
    weighed = [(FADING**age, delay_s) for age, delay_s in enumerate(reversed(delays_s))]
    for order, option in enumerate(policy.options):
        critical_s = critical_delay_s(policy, option)
        least_s = LEAST_WINDOW * policy.normal_s
        covered_s = (COVER * delay_s for delay_s in delays_s)
        covers_s = sorted(cover_s for cover_s in covered_s if least_s < cover_s < critical_s)
        for window_s in {critical_s, least_s, *covers_s[:: -(-len(covers_s) // MAX_COVERS) or 1]}:
            total_s = sum(weight * cost_s(policy, option, window_s, delay_s) for weight, delay_s in weighed)
            # As good as another: what costs least should a rank come soon after all; then by order; then the longer
            # window where ranks are rarely late, the shorter one where they are.
            in_vain_s = cost_s(policy, option, 0.0, soon_s) if is_jittery else 0.0
            ranked.append((total_s, in_vain_s, order, window_s if middle_s > critical_s else -window_s))
    *_, order, window_s = min(ranked)
    return abs(window_s), policy.options[order].choice


def to_text(policy: Policy) -> str:
    """`policy` in one line, for the wire."""
    parts = [f"{float(policy.normal_s)!r} {','.join(map(str, policy.port_of))}".rstrip()]
    for choice, before_s, join_s, late, ranks in policy.options:
        parts.append(f"{choice} {before_s!r} {join_s!r} {late} {','.join(map(str, ranks))}".rstrip())
    return ";".join(parts)


@functools.lru_cache(64)
def from_text(text: str) -> Policy:
    """The Policy that `to_text` wrote; cached, since every rank brings the same to every call.

    Raises:
        ValueError: it did not.
    """
    head, *rest = text.split(";")
    if len(rest) > MAX_OPTIONS:
        raise ValueError(f"policy: got {len(rest)} options, expected at most {MAX_OPTIONS}")
    options = []
    for part in rest:
        choice, before_s, join_s, late, *places = part.split(" ")
        if not ANY <= int(late) <= MAX_LATE:
            raise ValueError(f"policy: got {late} late ranks, expected {ANY} to {MAX_LATE}")
        (names,) = places or [""]
        ranks = tuple(map(int, names.split(","))) if names else ()
        option = Option(choice, _seconds(before_s), _seconds(join_s), int(late), ranks)
        takes_in = _ANY_CHOICE.fullmatch(choice) and option.before_s > 0 and option.join_s > 0
        if not choice or (option.late == ANY) != bool(takes_in):
            raise ValueError(f"policy: got {part!r}, expected an algorithm, any_arrival/CHUNKS/AHEAD alone for {ANY}")
        options.append(option)
    normal_s, *ports = head.split(" ")
    (names,) = ports or [""]
    return Policy(_seconds(normal_s), tuple(options), tuple(map(int, names.split(","))) if names else ())


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 <= number < 1e9:
        raise ValueError(f"policy: got {text}, expected seconds")
    return number
