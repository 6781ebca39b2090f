"""What an algorithm takes on a topology, by the model and by flows; and what `auto` would take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from lanterne.bench.output.report import progress
from lanterne.bench.output.units import format_nbytes
from lanterne.errors import InputError

if TYPE_CHECKING:
    from lanterne.collectives.algorithms.catalogue import Algorithm
    from lanterne.collectives.schedule.ir import LateRank
    from lanterne.collectives.topology.topology import Topology

# Beyond, flows would take minutes and say little more.
MAX_FLOW_TRANSFERS = 8_000_000
# Of more ranks an algorithm that searches for its schedule is left out.
MAX_SEARCH_RANKS = 64


class StudyOutcome(NamedTuple):
    """An algorithm on a topology; times in s, by the model and by flows (None: not simulated)."""

    algorithm: str
    num_chunks: int | None
    rounds: int
    together_s: float
    late_s: float
    ideal_delay_s: float
    together_flows_s: float | None
    late_flows_s: float | None

    @property
    def judged_together_s(self) -> float:
        return self.together_s if self.together_flows_s is None else self.together_flows_s

    @property
    def judged_late_s(self) -> float:
        return self.late_s if self.late_flows_s is None else self.late_flows_s


def lines_on(topology: Topology) -> tuple[Algorithm, ...]:
    """The algorithms that make sense on `topology`."""
    from lanterne.collectives.auto.predict import fitting, nodes_of_links

    return fitting("all_reduce", nodes_of_links(topology) is not None, topology.leaf_sets)


def outcomes(topology: Topology, nbytes: int, late: LateRank, names: str = "all") -> list[StudyOutcome]:
    """The StudyOutcome of every algorithm of `names` that can be used, fastest with a late rank first."""
    from lanterne.collectives.algorithms.catalogue import find_algorithm

    lines = lines_on(topology)
    if names != "all":
        lines = tuple(find_algorithm("all_reduce", name) for name in names.split(","))
    several = isinstance(late, tuple)
    found = []
    for line in lines:
        # What searches for long, or knows one late rank only, or is of a size that cannot be made.
        unfit = (line.late and several and not line.several) or (line.slow and topology.world_size > MAX_SEARCH_RANKS)
        if line.refuses(topology.world_size) or unfit:
            continue
        progress(f"{line.name}, {topology.world_size} ranks, {format_nbytes(nbytes)}")
        outcome = study_one(topology, nbytes, late, line.name)
        if outcome is not None:
            found.append(outcome)
    if not found:
        raise InputError(f"study: got no algorithm that {topology.world_size} ranks can use, expected one")
    return sorted(found, key=lambda each: each.judged_late_s)


def study_one(
    topology: Topology, nbytes: int, late: LateRank, name: str, num_chunks: int | None = None, *, flows: bool = True
) -> StudyOutcome | None:
    """The StudyOutcome of algorithm `name`; None where its schedule would be too large to make.

    Args:
        num_chunks: None for what the model likes best.
        flows: simulate, where that is not too large.
    """
    from lanterne.bench.collective.cost import before
    from lanterne.collectives.algorithms.catalogue import MAX_CELLS, find_algorithm, make_schedule
    from lanterne.collectives.auto.pacing import sustained
    from lanterne.collectives.auto.predict import chunk_count, nodes_of_links, starts_part
    from lanterne.collectives.schedule.check_schedule import check
    from lanterne.collectives.schedule.cost import late_start, price
    from lanterne.collectives.schedule.passes import waiting_part
    from lanterne.collectives.topology.topology import MOST_FLOW_RANKS

    line, size = find_algorithm("all_reduce", name), topology.world_size
    chunks = num_chunks or chunk_count(line, size, nbytes, topology, min_chunk_nbytes=1)
    if (chunks or size) * size > MAX_CELLS:
        return None
    nodes = nodes_of_links(topology)
    expected = late if line.late else None
    schedule = make_schedule("all_reduce", name, size, chunks, late_rank=expected, nodes=nodes)
    if num_chunks is None:
        schedule = check(schedule).schedule
    joins = [phase.start for phase in schedule.phases if phase.name == "join"] if line.late else []
    delay_s = price(before(schedule, joins[0]), nbytes, topology).makespan_s if joins else 0.0
    # Flows have whole rounds: where these overlap, a part of the starts is left, since the rest passes beside bytes.
    part = starts_part(line, schedule.num_chunks, nbytes, topology)
    at = topology.with_models(lambda model: sustained(model, part)) if part < 1 else topology
    together_s = price(schedule, nbytes, at).makespan_s
    late_s = price(waiting_part(schedule, late), nbytes, at).makespan_s if joins else together_s
    by_flows: tuple[float | None, float | None] = (None, None)
    if flows and size <= MOST_FLOW_RANKS and schedule.num_transfers <= MAX_FLOW_TRANSFERS:
        from lanterne.collectives.topology.flows import simulate_flows

        whole_s = float(simulate_flows(schedule, nbytes, at).max())
        # Flows may take longer than the model before the late rank is needed.
        far = late_start(size, late, max(10 * whole_s, delay_s)) if joins else None
        exposed_s = whole_s if far is None else float(simulate_flows(schedule, nbytes, at, far).max() - far.max())
        by_flows = whole_s, exposed_s
    modelled = together_s, late_s, delay_s
    return StudyOutcome(name, schedule.num_chunks, schedule.num_rounds, *modelled, *by_flows)


def auto_of(topology: Topology, nbytes: int, late: LateRank, found: Sequence[StudyOutcome]) -> dict[str, Any]:
    """What `auto` would take on `topology`: {together, late}: names of `found`, with what they are judged to take."""
    ordinary, joining = auto_names(topology, nbytes, late)
    by_name = {each.algorithm: each for each in found}
    together = by_name.get(ordinary)
    waits_s = None if together is None else together.judged_together_s
    late_s = by_name[joining].judged_late_s if joining in by_name else waits_s
    return {"together": ordinary, "late": joining or ordinary, "together_s": waits_s, "late_s": late_s}


def auto_names(topology: Topology, nbytes: int, late: LateRank) -> tuple[str, str | None]:
    """What `auto` takes where nobody is late, and once `late` is known to come very late; None: it waits."""
    from lanterne.collectives.auto.predict import nodes_of_links, ordinary_by_law_s, predictions
    from lanterne.collectives.auto.tuning import MAX_PRICED_RANKS
    from lanterne.collectives.late.options import group_name, make_option, single_options

    size = topology.world_size
    links = topology.slowest if topology.is_flat else topology
    many, number = size > MAX_PRICED_RANKS, len(late) if isinstance(late, tuple) else 1
    if many:
        ordinary = "ring" if nodes_of_links(links) is None else "hier_ring"
        ordinary_s = ordinary_by_law_s(size, nbytes, links)
    else:
        first = predictions("all_reduce", size, nbytes, links)[0]
        ordinary, ordinary_s = first.algorithm, first.time_s
    if late is None or size < 3 or (many and number > 1):
        return ordinary, None
    if isinstance(late, tuple):
        options = [make_option("all_reduce", group_name(links), size, nbytes, links, number)]
    else:
        options = [each for each in single_options("all_reduce", size, nbytes, links, many) if each.fits((late,))]
    best = min(options, key=lambda option: option.join_s)
    return ordinary, best.choice.partition("/")[0] if best.join_s < ordinary_s else None


def judged_s(outcome: dict[str, Any], what: str) -> float:
    """What `outcome`, a StudyOutcome as a dict, takes `what` ("together", "late"), by flows where simulated."""
    by_flows = outcome[f"{what}_flows_s"]
    return float(outcome[f"{what}_s"] if by_flows is None else by_flows)


def over(time_s: float | None, bound_s: float) -> str:
    """Of a table: `time_s` in multiples of `bound_s`."""
    return "-" if time_s is None or not bound_s else f"{time_s / bound_s:.2f}"
