"""Schedules from outside that a call names, or brings: made and checked once, and the same on all ranks.

Their digest is part of what ranks agree on before data moves (arguments.Key), so that ranks with different files, or
different versions of a function, all raise.
"""

import functools
import threading

from lanterne.collectives.algorithms.catalogue import UNSCHEDULED, find_algorithm, make_schedule
from lanterne.collectives.algorithms.hierarchical.compose import Nodes
from lanterne.collectives.algorithms.outside import AnyAlgorithm, checked_made, is_file, read_file
from lanterne.collectives.execute.communicator_base import CommunicatorBase
from lanterne.collectives.schedule.check_schedule import CheckedSchedule, check
from lanterne.collectives.schedule.ir import CollectiveSchedule, LateRank
from lanterne.collectives.schedule.passes import relabelled, split_chunks
from lanterne.errors import InputError

# So much of a foreign name, and of a digest, goes into a signature.
NAME_CHARACTERS, DIGEST_CHARACTERS = 32, 16

_making = threading.Lock()


def given_schedule(
    group: CommunicatorBase,
    collective: str,
    algorithm: AnyAlgorithm,
    num_chunks: int | None,
    root: int | None,
    late_rank: LateRank,
) -> CheckedSchedule | None:
    """The CheckedSchedule of an algorithm from outside; None where `algorithm` is a name that lanterne has.

    Raises:
        InputError: it is not there, is wrong, or not for such a call; names the place.
    """
    given: CheckedSchedule | CollectiveSchedule
    if isinstance(algorithm, CheckedSchedule | CollectiveSchedule):
        given = algorithm
    elif not isinstance(algorithm, str):
        raise InputError(f"{collective}: got algorithm {algorithm!r}, expected a name or a schedule")
    elif algorithm in UNSCHEDULED or not (line := find_algorithm(collective, algorithm)).outside:
        return None
    elif is_file(algorithm):
        given = read_file(algorithm)
    else:
        if not line.late:
            _expect_none(algorithm, late_rank)
        nodes = group.nodes if line.nodes else None
        with _making:
            return _made(collective, algorithm, group.world_size, num_chunks, root, late_rank, nodes)
    _expect_none(given.schedule.name if isinstance(given, CheckedSchedule) else given.name, late_rank)
    with _making:
        return _checked(given, collective, group.world_size, num_chunks, root)


def given_name(checked: CheckedSchedule) -> str:
    """What signatures call a schedule from outside: its algorithm, as far as that is short, and its digest."""
    schedule = checked.schedule
    return f"{schedule.algorithm[:NAME_CHARACTERS]}@{schedule.fingerprint[:DIGEST_CHARACTERS]}"


def _expect_none(name: str, late_rank: LateRank) -> None:
    """Raise unless `late_rank` is None."""
    if late_rank is not None:
        raise InputError(f"late rank: got {late_rank}, but {name} expects none, or says its own")


@functools.lru_cache(64)
def _made(
    collective: str,
    algorithm: str,
    world_size: int,
    num_chunks: int | None,
    root: int | None,
    late_rank: LateRank,
    nodes: Nodes | None,
) -> CheckedSchedule:
    schedule = make_schedule(collective, algorithm, world_size, num_chunks, root, late_rank, nodes=nodes)
    return check(relabelled(schedule))


@functools.lru_cache(64)
def _checked(
    given: CheckedSchedule | CollectiveSchedule,
    collective: str,
    world_size: int,
    num_chunks: int | None,
    root: int | None,
) -> CheckedSchedule:
    schedule = checked_made(given, "schedule", collective, world_size, root)
    if isinstance(given, CheckedSchedule) and num_chunks in (None, schedule.num_chunks):
        return given
    return check(relabelled(split_chunks(schedule, num_chunks)))
