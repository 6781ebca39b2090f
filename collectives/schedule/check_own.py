"""What one rank can check of a schedule of which it has its own transfers alone.

That the parts of all ranks are one schedule, which the checker proves, is for tests to show, for every number of ranks
(tests/collectives/algorithms/test_own_parts.py). Here a rank sees that its own part has a port for each message, sends
nothing that it does not hold, and receives all of its result.
"""

from dataclasses import dataclass

import numpy as np

from lanterne.collectives.schedule.check_schedule import check_late_rank, check_ranges
from lanterne.collectives.schedule.chunk_layout import input_chunks, output_chunks
from lanterne.collectives.schedule.contracts import contract_of
from lanterne.collectives.schedule.ir import COPY, CollectiveSchedule, Ints
from lanterne.errors import ScheduleError


@dataclass(frozen=True)
class OwnSchedule:
    """The transfers of `rank` in `schedule`, which holds no others, checked as far as that goes; making is checking.

    Raises:
        ScheduleError: naming schedule, rank, round and chunk.

    Cost: some array operations, and memory, that grow with what the rank does.
    """

    schedule: CollectiveSchedule
    rank: int

    def __post_init__(self) -> None:
        schedule, rank = self.schedule, self.rank
        contract = contract_of(schedule)
        check_ranges(schedule)
        check_late_rank(schedule)
        sends, receives = schedule.src == rank, schedule.dst == rank
        if not (sends | receives).all():
            other = schedule.transfer(int(np.argmin(sends | receives)))
            raise ScheduleError(f"{schedule.name}: got transfer {other}, expected those of rank {rank} alone")
        round_of = np.repeat(np.arange(schedule.num_rounds), np.diff(schedule.offsets))
        for mine, peers in ((sends, schedule.dst), (receives, schedule.src)):
            messages = np.unique(round_of[mine] * schedule.world_size + peers[mine]) // schedule.world_size
            self._at_most(schedule.ports, messages, "messages one way in round")
        chunk, copies = schedule.chunk, receives & (schedule.op == COPY)
        written = round_of * schedule.num_chunks + chunk
        clash = np.isin(written[receives & ~copies], written[copies])
        self._at_most(1, np.r_[written[copies], written[receives & ~copies][clash]], "writes of place")
        # By chunk, the round after which this rank holds something of it.
        holds = np.full(schedule.num_chunks, schedule.num_rounds)
        np.minimum.at(holds, chunk[receives], round_of[receives])
        came = holds < schedule.num_rounds
        starts = input_chunks(schedule, rank)
        holds[starts] = -1
        early = sends & (holds[chunk] >= round_of)
        if early.any():
            at = int(np.argmax(early))
            raise ScheduleError(
                f"{schedule.name}: round {round_of[at]}, transfer {schedule.transfer(at)}: rank {rank} holds nothing"
            )
        needed = output_chunks(schedule, rank)
        if not contract.reduces:
            needed = np.setdiff1d(needed, starts)
        missing = needed[~came[needed]] if schedule.world_size > 1 else needed[:0]
        if len(missing):
            raise ScheduleError(f"{schedule.name}: chunk {missing[0]} of the result never comes to rank {rank}")

    def _at_most(self, most: int, places: Ints, what: str) -> None:
        """Raise if a number is more than `most` times among `places`: a round, or (round, chunk) as one number."""
        found, count = np.unique(places, return_counts=True)
        if (count > most).any():
            worst = int(np.argmax(count))
            raise ScheduleError(
                f"{self.schedule.name}: rank {self.rank}: got {count[worst]} {what} {found[worst]}, expected {most}"
            )
