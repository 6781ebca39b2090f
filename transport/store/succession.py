"""What a job's store has decided, kept by a majority of electors on its hosts, so that another store may succeed it.

Values and pure functions, Paxos as in L. Lamport, "Paxos made simple", 2001, over a list that only grows. The store
that leads writes the list, with what it wants to add, to the electors. It is decided, and may be told, once a majority
has it. Who wants to succeed it has a majority promise to take no more from it, and goes on with the list that was
written last. Two stores that both lead can so never both decide. What a later decision makes void is left out of it.

Who the electors are is in the list itself: as long as it is not known to be decided that others are, a majority of
those before and one of those after is needed.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

# How many stores have tried to lead before, and the name of the one that does: no two have the same.
Term: TypeAlias = tuple[int, str]
NO_TERM: Term = (-1, "")
# Fewer decide nothing: of two, neither knows whether the other is dead or cut off.
LEAST_ELECTORS = 3


@dataclass(frozen=True)
class Decided:
    """`what` was decided, and `electors`, who decide what comes after it; none: the same as before."""

    what: bytes
    electors: tuple[str, ...] = ()


Log: TypeAlias = tuple[Decided, ...]


@dataclass(frozen=True)
class Elector:
    """What one elector has to remember.

    Attributes: `promised`, the term before which it takes nothing any more; `written`, that in which its `log` was;
    `known`: so many of that are decided, as far as it knows; `dropped`: so many decisions more are over, and left out
    of the log, as long as it would be with them.
    """

    promised: Term = NO_TERM
    written: Term = NO_TERM
    log: Log = ()
    known: int = 0
    dropped: int = 0

    @property
    def length(self) -> int:
        """Of the log, with what was left out."""
        return self.dropped + len(self.log)

    def promise(self, term: Term) -> "Elector | None":
        """It, having promised itself to `term`; None: it has to another, or to this one before."""
        return replace(self, promised=term) if term > self.promised else None

    def write(self, term: Term, log: Log, known: int, dropped: int = 0) -> "Elector | None":
        """It, with the `log` of whoever leads in `term`; None: it has promised to take that no more."""
        if term < self.promised:
            return None
        if term == self.written and dropped + len(log) <= self.length:  # late: it has more by now
            return replace(self, known=max(self.known, min(dropped + known - self.dropped, len(self.log))))
        return Elector(term, term, log, known, dropped)

    def followed_by(self, decision: Decided) -> "Elector":
        """It, with one more at the end of its log."""
        return replace(self, log=(*self.log, decision))

    def without(self, over: Collection[bytes]) -> "Elector":
        """It, without those decisions, as far as it knows them, that another one makes void."""
        decided, rest = self.log[: self.known], self.log[self.known :]
        kept = tuple(each for each in decided if each.electors or each.what not in over)
        return replace(self, log=kept + rest, known=len(kept), dropped=self.dropped + self.known - len(kept))


def electorates(log: Log, known: int) -> list[tuple[str, ...]]:
    """Of each of these a majority decides on the `log`, of which the first `known` are decided."""
    found: list[tuple[str, ...]] = []
    for index, decision in enumerate(log):
        if decision.electors:
            found = [decision.electors] if index < known else [*found, decision.electors]
    return found


def names_of(log: Log, known: int) -> list[str]:
    """All who decide on the `log`, in order."""
    return list(dict.fromkeys(name for electors in electorates(log, known) for name in electors))


def is_backed(log: Log, known: int, by: Collection[str]) -> bool:
    """Whether `by` are enough to decide on the `log`."""
    asked = electorates(log, known)
    return bool(asked) and all(2 * len({*electors} & {*by}) > len(electors) for electors in asked)


def known_to(electors: Collection[Elector]) -> list[str]:
    """All who decide, as far as these know, in order."""
    return list(dict.fromkeys(name for each in electors for name in names_of(each.log, each.known)))


def succeed(promises: Mapping[str, Elector]) -> Elector | None:
    """What a store goes on with to which these electors have made promises, as they were then; None: too few have.

    What it holds is decided once it is written, in the new term, to a majority (`is_backed`).
    """
    last = max(promises.values(), key=lambda each: (each.written, each.length))
    known = min(max(each.dropped + each.known for each in promises.values()) - last.dropped, len(last.log))
    return replace(last, known=known) if is_backed(last.log, known, promises) else None
