"""Terms on which a rank enters a running job: it must agree with the other ranks on them."""

from dataclasses import dataclass

from lanterne.errors import InputError

# A free place, or a new one where none is free.
ANY = -1
# A field of Terms that the other ranks may choose.
OPEN = ""
MAX_TEXT = 200


@dataclass(frozen=True)
class Terms:
    """`version` of lanterne; `transport`, by name; `model`, what the program says of itself."""

    version: str
    transport: str = OPEN
    model: str = OPEN

    def __post_init__(self) -> None:
        for text in (self.version, self.transport, self.model):
            if "\0" in text or len(text) > MAX_TEXT:
                raise InputError(f"model: got {len(text)} characters, expected at most {MAX_TEXT}, none of them NUL")

    def pack(self) -> bytes:
        """Return the bytes that `unpack` reads."""
        return "\0".join((self.version, self.transport, self.model)).encode()

    def refusal(self, others: "Terms") -> str:
        """Why a rank of these terms cannot be among `others`; empty if it can."""
        for name, mine, theirs in (
            ("lanterne", self.version, others.version),
            ("transport", self.transport or others.transport, others.transport),
            ("model", self.model, others.model),
        ):
            if mine != theirs:
                return f"got {name} {mine or 'of no name'!r}, expected {theirs or 'none'!r} as on the other ranks"
        return ""


def unpack(data: bytes) -> Terms:
    """The Terms that `pack` wrote.

    Raises:
        InputError: it did not.
    """
    parts = data.decode(errors="replace").split("\0")
    if len(parts) != 3:
        raise InputError(f"terms: got {len(parts)} parts, expected 3")
    return Terms(*parts)
