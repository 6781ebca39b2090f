"""Names of the meetings of a communicator's ranks, and what follows from them for other meetings."""

SHRINK, AGREE = "shrink", "agree"


def to_shrink(communicator: str) -> str:
    """Return the name of the meeting at which the living ranks of a communicator shrink it."""
    return f"{communicator}/{SHRINK}"


def to_agree(communicator: str, number: int) -> str:
    """Where they agree, for the `number`th time."""
    return f"{communicator}/{AGREE}/{number}"


def is_over(name: bytes, other: bytes) -> bool:
    """Return whether the answer of the meeting `name` is not needed once that of `other` is known.

    Both are of one series, its name and a number. A rank comes to one of the series after it has the answers before.
    """
    (*series, number), (*others, other_number) = name.rsplit(b"/", 1), other.rsplit(b"/", 1)
    are_numbers = number.isdigit() and other_number.isdigit()
    return bool(series) and series == others and are_numbers and int(number) < int(other_number)


def ends(name: bytes, other: bytes) -> bool:
    """Return whether a rank at `name`, to shrink, skips `other`, to agree: both are of one communicator."""
    communicator, _, what = name.rpartition(b"/")
    return what == SHRINK.encode() and other.rpartition(b"/")[0] == communicator + b"/" + AGREE.encode()
