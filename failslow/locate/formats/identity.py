"""The job's ranks, from the members of its communicators.

A rank is (communicator, rank in it). A host's process joins the ranks of several communicators where it has one rank in
each; several GPUs of one process are joined by the number of the GPU where the source has it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from lanterne.failslow.locate.formats.foreign_calls import whole

if TYPE_CHECKING:
    from lanterne.failslow.locate.formats.foreign_calls import CallBuilder


class Member(NamedTuple):
    """Where a rank of a communicator runs: `gpu` is -1 where it is not known; `file`: of processes of equal names."""

    host: str
    pid: int
    gpu: int = -1
    file: int = 0


# Of a communicator: its size, and the Member of each of its ranks that is known.
Communicators = Mapping[str, tuple[int, Mapping[int, Member]]]


def global_ranks(
    communicators: Communicators, into: CallBuilder, is_one_job: bool = False
) -> tuple[dict[tuple[str, int], int], tuple[tuple[str, int, int], ...]]:
    """Return the rank of each (communicator, rank in it), as far as evidence joins them, and the jobs.

    Communicators that share no process are of different jobs where each has one with all of its processes: a job is
    (its largest communicator, its first rank, how many it has). Of a single job, as with `is_one_job`, none is listed.

    The largest communicator of a job has the job's ranks if all processes fit into it; else they are counted by host
    and process, as launchers start them. Ranks that nothing joins are left out, and counted in `into`.
    """
    places, unjoined = _places(communicators, into)
    found, jobs = _ranks_of_all(communicators, places, is_one_job)
    into.unjoined.update(rank for key, rank in found.items() if _process(places[key][0]) in unjoined)
    return found, jobs


def _ranks_of_all(
    communicators: Communicators, places: Mapping[tuple[str, int], tuple[Member, int]], is_one_job: bool
) -> tuple[dict[tuple[str, int], int], tuple[tuple[str, int, int], ...]]:
    """Return the ranks and the jobs of `global_ranks`."""
    parts = _parts(communicators, places)
    largest = [max(part, key=lambda name: (communicators[name][0], len(communicators[name][1]))) for part in parts]
    are_whole = all(
        {places.get((name, local)) for local in communicators[name][1]}
        >= {place for (one, _), place in places.items() if one in part}
        for name, part in zip(largest, parts, strict=True)
    )
    if is_one_job or len(parts) < 2 or not are_whole:
        return _ranks_of(communicators, places), ()
    found: dict[tuple[str, int], int] = {}
    jobs: list[tuple[str, int, int]] = []
    for name, part in zip(largest, parts, strict=True):
        first = sum(count for _, _, count in jobs)
        own = {key: place for key, place in places.items() if key[0] in part}
        ranks = _ranks_of({one: communicators[one] for one in part}, own)
        found.update({key: first + rank for key, rank in ranks.items()})
        jobs.append((name, first, max(communicators[name][0], 1 + max(ranks.values(), default=0))))
    return found, tuple(jobs)


def _parts(communicators: Communicators, places: Mapping[tuple[str, int], object]) -> list[list[str]]:
    """Return the communicators that share places, directly or through others, together."""
    own: dict[str, set[object]] = {name: set() for name in communicators}
    for (name, _), place in places.items():
        own[name].add(place)
    parts: list[tuple[list[str], set[object]]] = []
    for name, its in own.items():
        apart = [part for part in parts if part[1].isdisjoint(its)]
        joined = [part for part in parts if not part[1].isdisjoint(its)]
        parts = [*apart, (sum((names for names, _ in joined), [name]), its.union(*(known for _, known in joined)))]
    return [names for names, known in parts if known]


def _ranks_of(
    communicators: Communicators, places: Mapping[tuple[str, int], tuple[Member, int]]
) -> dict[tuple[str, int], int]:
    """Return the ranks of one job; places that its largest communicator lacks, though it is large enough, have none."""
    name, (size, known) = max(communicators.items(), key=lambda one: (one[1][0], len(one[1][1])), default=("", (0, {})))
    everyone = sorted(set(places.values()), key=_in_order)
    ranks = {place: rank for rank, place in enumerate(everyone)}
    if size >= len(everyone):
        ranks = {places[name, local]: local for local in known if (name, local) in places}
    return {key: ranks[place] for key, place in places.items() if place in ranks}


def _process(one: Member) -> tuple[str, int, int]:
    return one.host, one.pid, one.file


def _places(
    communicators: Communicators, into: CallBuilder
) -> tuple[dict[tuple[str, int], tuple[Member, int]], set[tuple[str, int, int]]]:
    """Return (Member, which of its process) of each rank, and the processes of ranks of which nothing tells it.

    The second of a place is 0 but of several GPUs of a process.

    GPUs whose number the source does not have are counted in the order of their ranks, where a process has as many in
    each communicator.
    """
    most: Counter[tuple[str, int, int]] = Counter()
    unjoined: set[tuple[str, int, int]] = set()
    for _, members in communicators.values():
        most |= Counter(map(_process, members.values()))
    found = {}
    for name, (_, members) in communicators.items():
        own = Counter(map(_process, members.values()))
        turn: Counter[tuple[str, int, int]] = Counter()
        for local, one in sorted(members.items()):
            place = _process(one)
            if most[place] == 1:
                found[name, local] = one._replace(gpu=-1), 0
            elif one.gpu >= 0:
                found[name, local] = one, 0
            elif own[place] == most[place]:
                found[name, local] = one, turn[place]
                turn[place] += 1
            else:
                unjoined.add(place)
                into.skipped["a rank of a process with several GPUs, of which nothing tells which one it is"] += 1
    return found, unjoined


def _in_order(place: tuple[Member, int]) -> tuple[list[tuple[int, str]], int, int, int, int]:
    """Return the key of a place among others: host2 comes before host10."""
    one, turn = place
    return (
        [(whole(digits), text) for text, digits in re.findall(r"(\D*)(\d*)", one.host)],
        one.pid,
        one.file,
        one.gpu,
        turn,
    )
