"""What may be slow, a rank or a link, as a value with one text form."""

import re
from typing import Self

from lanterne.errors import InputError

# A rank is written in one way only.
NUMBER = r"0|[1-9]\d*"


class Suspect(str):
    """A rank, "rank 3", or the link between two, the lower one first, "link 1-2": that text, so JSON has it as it is.

    Attributes: `ends`: (3,) or (1, 2).

    Raises:
        InputError: a text that is neither.
    """

    __slots__ = ("ends",)

    ends: tuple[int, ...]

    def __new__(cls, text: str) -> Self:
        found = re.fullmatch(rf"rank ({NUMBER})|link ({NUMBER})-({NUMBER})", text, re.ASCII)
        ends = tuple(int(number) for number in found.groups() if number is not None) if found else ()
        if not ends or (len(ends) == 2 and ends[0] >= ends[1]):
            raise InputError(f"suspect: got {text!r}, expected rank R, or link A-B with A below B")
        self = super().__new__(cls, text)
        self.ends = ends
        return self

    @classmethod
    def rank(cls, rank: int) -> Self:
        """A rank."""
        return cls(f"rank {rank}")

    @classmethod
    def link(cls, one: int, other: int) -> Self:
        """The link between two ranks."""
        return cls(f"link {min(one, other)}-{max(one, other)}")

    @property
    def is_rank(self) -> bool:
        """Whether it is a rank."""
        return len(self.ends) == 1

    def pair(self) -> tuple[int, int]:
        """The two ends of a link."""
        one, other = self.ends
        return one, other
