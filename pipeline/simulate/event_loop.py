"""The event loop of pipelines: when each operation starts and ends.

A *lane* does one operation at a time: a rank that computes, a link that several ranks share, a stream of a device. An
*operation* waits for at most one message, and sends at most one when it ends. Lanes are of three kinds:

- IN_ORDER lanes run a given order, each as far as messages allow. Their times are sums and maxima over a fixed graph,
  so it does not matter which lane goes first.
- FIRST_COME lanes run operations in the order in which their messages arrive.
- BY_RULE lanes ask a rule what to run next.

The last two decide by what has happened. So they decide in order of time, and only when no lane in order can go on:
then no message is still to come that arrives before the time of the decision.

The text runs as plain Python on lists, and compiled on arrays (see compiled.py). With `later` as np.maximum, times may
be arrays: many iterations at once.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

IN_ORDER, FIRST_COME, BY_RULE = range(3)
# The time of what does not happen.
NEVER = 1e300


class Operations(NamedTuple):
    """Operation table: what lanes run, by row.

    A row runs once, or once for each microbatch; runs are numbered through all rows.

    Attributes:
        lane: that runs it.
        source: the row whose k-th message its k-th run waits for; -1 for none.
        target: the row that waits for its message; -1 for none.
        first: the number of its first run.
        duration: by row; or by run, where those of a row differ.
        link: that its message occupies, where `occupancy` is above 0. All senders of a link are on one lane.
        occupancy: for how long.
        latency: from the end of the row, or of the occupancy, to the arrival of the message.
        gather: a communication before its first run; those of a lane run one after another, beside its operations.
    """

    lane: Any
    source: Any
    target: Any
    first: Any
    duration: Any
    link: Any
    occupancy: Any
    latency: Any
    gather: Any


class Orders(NamedTuple):
    """The rows that each lane runs: those of lane i are order[first[i] : stop[i]].

    A lane that is not IN_ORDER writes there what it runs.
    """

    order: Any
    first: Any
    stop: Any


class Times(NamedTuple):
    """Results by run: when its message arrived (0 without one), when it began, when it ended."""

    arrival: Any
    begun: Any
    ended: Any


class Progress(NamedTuple):
    """Working memory of the loop.

    Attributes, by lane if not said otherwise:
        at, stop: the place in the order of what it runs next, and behind the last that is known.
        clock: when it ended what it ran last; gathered: when its last communication ends.
        asleep: whether it waits for a message.
        stack: lanes that can go on.
        count: by row, how often it has run.
        busy_until: by link.
    """

    at: Any
    stop: Any
    clock: Any
    gathered: Any
    asleep: Any
    stack: Any
    count: Any
    busy_until: Any


class Decisions(NamedTuple):
    """State of the lanes that are not in order.

    Attributes:
        kind: by lane.
        wake: by lane, when it decides next.
        joined: by place in the order of a FIRST_COME lane, when the message of what is there arrived.
    """

    kind: Any
    wake: Any
    joined: Any


# (row to run now, any time), or (-1, when to ask again if no message arrives before).
Pick = Callable[[Operations, Times, Progress, Any, int, float], tuple[int, float]]


def event_loop(later: Callable[[Any, Any], Any] = max, pick: Pick | None = None) -> Callable[..., int]:
    """Return the loop, with the later of two times by `later`, and `pick` choosing for lanes that are BY_RULE.

    It is one text for plain Python and for Numba, which keeps compiled functions on disk only if the functions that
    they call are no arguments.
    """

    def run(
        operations: Operations,
        orders: Orders,
        times: Times,
        progress: Progress,
        decisions: Decisions | None = None,
        rule: Any = None,
    ) -> int:
        """Fill `times` and return how many runs there were: too few where lanes wait for each other for ever.

        Args:
            decisions: None where all lanes are IN_ORDER.
            rule: passed on to `pick`.

        Cost: about 6 ns per run compiled, 0.4 us in plain Python.
        """
        lane_of, source, target, first, duration, link, occupancy, latency, gather = operations
        order = orders.order
        arrival, begun, ended = times
        at, stop, clock, gathered, asleep, stack, count, busy_until = progress
        depth, ran = 0, 0
        # Begin with every lane at the start of its order.
        for lane in range(len(at)):
            at[lane], stop[lane], clock[lane], gathered[lane] = orders.first[lane], orders.stop[lane], 0.0, 0.0
            asleep[lane] = False
            if decisions is None or decisions.kind[lane] == IN_ORDER:
                stack[depth] = lane
                depth += 1
            if decisions is not None:
                decisions.wake[lane] = 0.0 if decisions.kind[lane] == BY_RULE else NEVER
                if decisions.kind[lane] == FIRST_COME:
                    stop[lane] = orders.first[lane]
        for row in range(len(count)):
            count[row] = 0
        for used in range(len(busy_until)):
            busy_until[used] = 0.0
        varies = len(duration) > len(lane_of)
        while True:
            # Take a lane in order that can go on, or else the lane that decides next.
            if depth > 0:
                depth -= 1
                lane = stack[depth]
            elif decisions is None:
                return ran
            else:
                lane = 0
                for other in range(1, len(at)):
                    if decisions.wake[other] < decisions.wake[lane]:
                        lane = other
                if decisions.wake[lane] >= NEVER:
                    return ran
            asleep[lane] = False
            now, i, behind = clock[lane], at[lane], stop[lane]
            while True:
                # Find its next operation, or let it sleep.
                if decisions is not None and pick is not None and decisions.kind[lane] == BY_RULE:
                    row, until = pick(operations, times, progress, rule, lane, decisions.wake[lane])
                    if row < 0:
                        decisions.wake[lane], asleep[lane] = until, True
                        break
                    order[i], now = row, decisions.wake[lane]
                elif i == behind:
                    break
                else:
                    row = order[i]
                    if source[row] >= 0 and count[source[row]] <= count[row]:
                        asleep[lane] = True
                        break
                # Run it.
                k = count[row]
                nth = first[row] + k
                begins = later(now, arrival[nth])
                if k == 0 and gather[row] > 0.0:
                    gathered[lane] += gather[row]
                    begins = later(begins, gathered[lane])
                now = begins + (duration[nth] if varies else duration[row])
                begun[nth], ended[nth] = begins, now
                count[row] = k + 1
                i += 1
                ran += 1
                # Send its message, and wake the lane that waits for it.
                to = target[row]
                if to >= 0:
                    leaves = now
                    if occupancy[row] > 0.0:
                        leaves = later(now, busy_until[link[row]]) + occupancy[row]
                        busy_until[link[row]] = leaves
                    arrives = leaves + latency[row]
                    arrival[first[to] + k] = arrives
                    receiver = lane_of[to]
                    if decisions is not None and decisions.kind[receiver] == FIRST_COME:
                        # Messages that arrive together go in the order of the lanes that sent them.
                        j = stop[receiver]
                        stop[receiver] = j + 1
                        while j > at[receiver] and (
                            decisions.joined[j - 1] > arrives
                            or (decisions.joined[j - 1] == arrives and lane_of[source[order[j - 1]]] > lane)
                        ):
                            order[j], decisions.joined[j] = order[j - 1], decisions.joined[j - 1]
                            j -= 1
                        order[j], decisions.joined[j] = to, arrives
                        decisions.wake[receiver] = max(clock[receiver], decisions.joined[at[receiver]])
                    elif asleep[receiver]:
                        if decisions is not None and decisions.kind[receiver] == BY_RULE:
                            decisions.wake[receiver] = min(decisions.wake[receiver], arrives)
                        else:
                            asleep[receiver] = False
                            stack[depth] = receiver
                            depth += 1
                # A lane that decides does so again at its time.
                if decisions is not None and decisions.kind[lane] != IN_ORDER:
                    decisions.wake[lane] = now
                    if decisions.kind[lane] == FIRST_COME:
                        decisions.wake[lane] = NEVER if i == behind else max(now, decisions.joined[i])
                    break
            clock[lane], at[lane] = now, i

    return run
