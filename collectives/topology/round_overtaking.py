"""What messages take where those of neighbouring rounds meet: ranks that have less to do in a round are ahead.

Two ranks of a node share its NIC. One sends two chunks in this round and one in the next, the other one and then two.
By rounds each has the NIC for three chunks at a time, and so it would be if they kept step. But the one that is done
sooner begins its next two messages, the NIC has three to share, and the two chunks take twice as long as was thought;
whoever waits for those is late. Elsewhere a slow round of some ranks is a time of which others make use.

So the price is found in passes. By what messages were last taken to take, they begin and end; over that time each link
had so many messages under way, which moved so much; a message can have its share of the link, or what the others leave
if that is more. What such averages are wrong by for a round alone, where all is known (round_sharing.py), is taken out.
Some passes of this come near to what flows do (flows.py), which go from event to event.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lanterne.collectives.schedule.ir import Ints
from lanterne.collectives.topology.crossing import CrossedLinks
from lanterne.collectives.topology.round_sharing import ENDLESS, RoundMessages, moves_s

Numbers = NDArray[np.float64]
# A message whose bytes take no time is under way for so long, s.
INSTANT_S = 1e-15


class LinkUsers(NamedTuple):
    """The messages that use one side of a class of links, the link of each, and its capacity in bytes per s."""

    messages: Ints
    links: Ints
    capacity: Numbers


class RoundOvertaking:
    """Messages of some rounds, and the links on which they meet.

    Args:
        nbytes: of a chunk.
        starts_s: of each transfer's message, its start-up times.
    """

    def __init__(self, messages: RoundMessages, nbytes: float, starts_s: Numbers, crossed: CrossedLinks) -> None:
        self._message_of = messages.message_of
        self._sizes = np.asarray(messages.chunks * nbytes, np.float64)
        self._firsts = np.zeros(len(messages.src), np.int64)
        self._firsts[messages.message_of] = np.arange(len(messages.message_of))
        self._starts_s = starts_s[self._firsts]
        self._moves_s = np.maximum(moves_s(crossed, messages, nbytes), INSTANT_S)
        self._users = list(_users_of(crossed, messages, self._sizes))
        # Averages tell less than what is known of messages that meet none but those of their round: for these they
        # are corrected.
        rounds = np.repeat(np.arange(len(messages.bounds) - 1), np.diff(messages.bounds))
        apart = [users._replace(links=_apart(users.links, rounds[users.messages])) for users in self._users]
        self._correction = self._moves_s / self._averages_s(apart, np.zeros(len(rounds)))

    def first_s(self) -> Numbers:
        """What each transfer's message takes where rounds do not meet."""
        return (self._starts_s + self._moves_s)[self._message_of]

    def again_s(self, begin_s: Numbers, stride: float) -> Numbers:
        """The same where they do: it begins at `begin_s`, and takes what was said last; see Overtaking."""
        found_s = self._correction * self._averages_s(self._users, begin_s[self._firsts] + self._starts_s)
        # A part of the way, as a factor: who is found to take longer makes way for others.
        self._moves_s = self._moves_s ** (1 - stride) * found_s**stride
        return (self._starts_s + self._moves_s)[self._message_of]

    def _averages_s(self, all_users: Sequence[LinkUsers], from_s: Numbers) -> Numbers:
        """What the bytes of each message take that begin to move at `from_s`, by what others do meanwhile."""
        rates = self._sizes / self._moves_s
        found = np.full(len(rates), ENDLESS)
        for messages, links, capacity in all_users:
            others = _beside(links, from_s[messages], self._moves_s[messages], rates[messages])
            rate = np.minimum(np.maximum(capacity * others.share, capacity - others.rate), capacity)
            found[messages] = np.minimum(found[messages], rate)
        return np.maximum(self._sizes / found, INSTANT_S)


def _users_of(crossed: CrossedLinks, messages: RoundMessages, sizes: Numbers) -> Iterator[LinkUsers]:
    """The LinkUsers of both sides of all classes that `messages` of these `sizes` use."""
    for model, (mask, leaves, enters, _, slowdown) in crossed(messages.src, messages.dst):
        using = np.flatnonzero(mask)
        for side in (leaves, enters) if len(using) else ():
            _, beta = model.alpha_beta(slowdown[side] * sizes[using])
            yield LinkUsers(using, side, 1 / np.maximum(slowdown[side] * beta, 1 / ENDLESS))


def _apart(links: Ints, rounds: Ints) -> Ints:
    """`links` as if each round had its own."""
    return links + (1 + links.max(initial=0)) * rounds


class Others(NamedTuple):
    """What those beside a message on its link leave it: its fair `share` of 1; the `rate` of all of them, bytes per s.

    Averages over the time of the message.
    """

    share: Numbers
    rate: Numbers


def _beside(links: Ints, from_s: Numbers, moves_s: Numbers, rates: Numbers) -> Others:
    """The Others of messages on `links` that move from `from_s` for `moves_s` at `rates`."""
    size = len(links)
    times_s = np.concatenate([from_s, from_s + moves_s])
    order = np.lexsort((times_s, np.tile(links, 2)))
    place = np.empty(2 * size, np.int64)
    place[order] = np.arange(2 * size)
    passed_s = np.diff(times_s[order], append=0.0)

    def under_way(each: Numbers) -> Numbers:
        # After each event; none after the last of a link.
        return np.cumsum(np.concatenate([each, -each])[order])

    def average(values: Numbers) -> Numbers:
        total = np.concatenate([[0.0], np.cumsum(values * passed_s)[:-1]])
        return (total[place[size:]] - total[place[:size]]) / moves_s

    share = average(1 / np.maximum(under_way(np.ones(size)), 1.0))
    return Others(share, np.maximum(average(under_way(rates)) - rates, 0.0))
