"""A sequential test of whether something persists: votes for and against add up, and no single one counts for much."""

from math import log

# Sums of votes, as odds: what is worth a word, and what is certain.
PROVISIONAL = log(1e2)
LIKELY = log(1e5)
MIN_RATE, MAX_RATE = 0.03, 0.6


class VoteRun:
    """A CUSUM of votes.

    Attributes: `score`; `start`: first row since its last zero; `suspected`: row at which it became provisional, None
    while it is not; `grew`: the last vote was for a change; `cap`: the most that one vote counts, for or against;
    `rate`: the share of rows without a change that look like one.
    """

    __slots__ = ("cap", "grew", "rate", "score", "start", "suspected")

    def __init__(self, rate: float = MIN_RATE) -> None:
        self.score: float = 0.0
        self.grew: bool = False
        self.start: int = 0
        self.suspected: int | None = None
        self.set_rate(rate)

    def set_rate(self, rate: float) -> None:
        """Expect a share `rate` of rows to vote for a change that is none."""
        self.rate: float = min(max(rate, MIN_RATE), MAX_RATE)
        self.cap: float = -log(self.rate)

    def add(self, vote: float, row: int) -> None:
        """Count the `vote` of `row`, a log-likelihood ratio."""
        cap = self.cap
        vote = cap if vote > cap else -cap if vote < -cap else vote
        self.grew = vote > 0.0
        if self.score == 0.0:
            if vote <= 0.0:
                return
            self.start = row
            self.suspected = None
        # Without a limit a run that nobody believes would take forever to clear.
        score, most = self.score + vote, LIKELY + 4 * cap
        self.score = 0.0 if score < 0.0 else most if score > most else score
        if self.suspected is None and score >= PROVISIONAL:
            self.suspected = row

    def clear(self) -> None:
        """Set the score to zero; the rate stays."""
        self.score = 0.0
