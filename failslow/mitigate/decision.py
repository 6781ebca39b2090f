"""What a Controller is told, what it answers, and what it goes by: values."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from lanterne.failslow.mitigate.strategies import Arrangement, Slowness
from lanterne.failslow.validate.links import Link
from lanterne.pipeline.adapt.suspect import Suspect


@dataclass(frozen=True)
class ControllerSettings:
    """How a Controller decides.

    Attributes:
        calibrate: iterations that tell what is healthy, behind the first two.
        onset, relief: iterations in a row that make a suspect, and that acquit it.
        persistent: iterations in a row that make a suspect although the Tracker, in noise, says nothing yet.
        slow_rank, well_rank: factors of a rank's computing from which it is slow, and up to which it is well again.
        slow_link, well_link: the same for messages, in parts of the mean work on a microbatch of a stage.
        relieved_link: a link is well again, too, at this share of what it was blamed for.
        gain: share of an iteration that a mitigation must be predicted to gain.
        validates: whether suspects are validated; acquitted ones are left alone for `acquitted` iterations.
        rebalance_s, topology_s, restart_s: what S2 to S4 cost; the measured cost takes the place of the first guess.
    """

    calibrate: int = 10
    onset: int = 2
    relief: int = 3
    persistent: int = 4
    slow_rank: float = 1.25
    well_rank: float = 1.12
    slow_link: float = 0.3
    well_link: float = 0.15
    relieved_link: float = 0.25
    gain: float = 0.02
    validates: bool = True
    acquitted: int = 20
    rebalance_s: float = 0.01
    topology_s: float = 0.3
    restart_s: float = 10.0


@dataclass(frozen=True)
class Seen:
    """What one iteration showed.

    Attributes:
        iteration: its number.
        iteration_s: the longest of any rank.
        compute_s: rank -> seconds of its work on a microbatch; ranks that reported nothing are absent, or nan.
        links: (a, b), a < b -> seconds of a message, (least, most) as far as known.
        gradients_s: rank -> (began, ended) of its wait for gradients, seconds of one clock.
        tested: rank that is out of the job -> factor of what a test of it takes, over what it takes its peers.
        for_slow_links: whether the plan that ran was made for slow links in the pipelines.
    """

    iteration: int
    iteration_s: float
    compute_s: Mapping[int, float]
    links: Mapping[Link, tuple[float, float]] = field(default_factory=dict)
    gradients_s: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    tested: Mapping[int, float] = field(default_factory=dict)
    for_slow_links: bool = False


@dataclass(frozen=True)
class Decision:
    """What is to be done before the next iteration.

    Attributes:
        kind: "validate" the `suspects`, "mitigate", "revert", or "report": something is wrong, and nobody is to blame.
        iteration: whose Seen led to it.
        suspects: ranks and links that it is about.
        strategy, arrangement: of a mitigation.
        before_s, predicted_s: of an iteration, measured now and expected.
        evidence: in words.
    """

    kind: str
    iteration: int
    suspects: tuple[Suspect, ...] = ()
    strategy: str | None = None
    arrangement: Arrangement | None = None
    before_s: float | None = None
    predicted_s: float | None = None
    evidence: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def blamed(slow: Slowness) -> dict[Suspect, float]:
    """What a Slowness blames: of ranks a factor, of links seconds."""
    ranks = {Suspect.rank(rank): factor for rank, factor in slow.ranks.items()}
    return ranks | {Suspect.link(a, b): seconds for (a, b), seconds in slow.links.items()}
