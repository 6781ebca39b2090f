"""Names of the meetings of a communicator's ranks, and what follows from them for other meetings."""

SHRINK, AGREE = "shrink", "agree"


def to_shrink(communicator: str) -> str:
    """Where the living ranks of a communicator come together that go on without the others."""
    return f"{communicator}/{SHRINK}"


def to_agree(communicator: str, number: int) -> str:
    """Where they agree, for the `number`th time."""
    return f"{communicator}/{AGREE}/{number}"


def is_over(name: bytes, other: bytes) -> bool:
    """Whether nobody asks for the answer of the meeting `name` any more once that of `other` is known.

    Both are of one series, its name and a number: who comes to one of it was told of those before.
    """
    (*series, number), (*others, other_number) = name.rsplit(b"/", 1), other.rsplit(b"/", 1)
    are_numbers = number.isdigit() and other_number.isdigit()
    return bool(series) and series == others and are_numbers and int(number) < int(other_number)


def ends(name: bytes, other: bytes) -> bool:
    """Whether who has come to `name`, to shrink, comes to `other`, to agree, no more: both are of one communicator."""
    communicator, _, what = name.rpartition(b"/")
    return what == SHRINK.encode() and other.rpartition(b"/")[0] == communicator + b"/" + AGREE.encode()
