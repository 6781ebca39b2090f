"""Text as tokens: bytes, characters, what cannot be read; batches that depend on seed and number alone."""

import numpy as np
import pytest

from lanterne.errors import InputError
from lanterne.pipeline.model.text import Batches, read_text


def test_bytes_and_characters(tmp_path):
    path = tmp_path / "x"
    path.write_text("no né ño", encoding="utf-8")
    data = path.read_bytes()
    text = read_text(path)
    assert bytes(text.tokens) == data and text.vocabulary == 256
    text = read_text(path, "chars")
    assert "".join(text.symbols[token] for token in text.tokens) == "no né ño"
    assert text.symbols == " noéñ" and text.vocabulary == 5


def test_what_is_no_text(tmp_path):
    path = tmp_path / "x"
    with pytest.raises(InputError, match=r"cannot read .*: No such file or directory"):
        read_text(path)
    path.write_bytes(b"")
    with pytest.raises(InputError, match="is empty, expected text to train on"):
        read_text(path)
    path.write_bytes(b"ab\xff")
    with pytest.raises(InputError, match="byte 2 is not UTF-8"):
        read_text(path, "chars")


def test_batches():
    tokens = np.arange(100, dtype=np.uint8)
    batches = Batches(tokens, 3, 2, 7, seed=1)
    inputs, targets = batches(4)
    assert inputs.shape == targets.shape == (3, 2, 7)
    np.testing.assert_array_equal(targets, inputs + 1)
    np.testing.assert_array_equal(inputs[..., 1:], inputs[..., :-1] + 1)
    np.testing.assert_array_equal(Batches(tokens, 3, 2, 7, seed=1)(4)[0], inputs)
    assert (batches(5)[0] != inputs).any() and (Batches(tokens, 3, 2, 7, seed=2)(4)[0] != inputs).any()
    Batches(tokens, 3, 2, 99)
    with pytest.raises(InputError, match="got 100 tokens, expected at least 101"):
        Batches(tokens, 3, 2, 100)
