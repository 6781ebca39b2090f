"""Text as tokens, and batches of it: what an iteration trains on depends on the seed and its number alone."""

from dataclasses import dataclass
from os import PathLike

import numpy as np

from lanterne.errors import InputError
from lanterne.kernels.arrays import HostArray
from lanterne.pipeline.model.stage_gpt import windows


@dataclass(frozen=True, eq=False)
class Text:
    """A text.

    Attributes:
        tokens: (n,) token numbers, uint8 for bytes, uint32 for characters.
        vocabulary: how many different tokens there are.
        symbols: the characters in the order of their numbers; "" for bytes.
    """

    tokens: HostArray
    vocabulary: int
    symbols: str = ""


def read_text(path: str | PathLike[str], unit: str = "bytes") -> Text:
    """The Text in file `path`, a token being a byte, or, with `unit` "chars", a character of UTF-8.

    Raises:
        InputError: the file cannot be read, is empty, or is not UTF-8.
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    if not data:
        raise InputError(f"{path}: is empty, expected text to train on")
    if unit == "bytes":
        return Text(np.frombuffer(data, np.uint8), 256)
    try:
        points = np.frombuffer(data.decode().encode("utf-32-le"), np.uint32)
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8, expected it, or bytes as tokens") from error
    symbols, tokens = np.unique(points, return_inverse=True)
    return Text(tokens.astype(np.uint32), len(symbols), "".join(map(chr, symbols.tolist())))


@dataclass(frozen=True, eq=False)
class Batches:
    """Called with an iteration's number: inputs and targets, two (microbatches, rows, length) arrays of tokens."""

    tokens: HostArray
    microbatches: int
    rows: int
    length: int
    seed: int = 0

    def __post_init__(self) -> None:
        self(0)

    def __call__(self, iteration: int) -> tuple[HostArray, HostArray]:
        return windows(self.tokens, self.microbatches, self.rows, self.length, [self.seed, iteration])
