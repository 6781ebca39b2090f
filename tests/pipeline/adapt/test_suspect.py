"""What may be slow: one value for each, and one text."""

import copy
import json
import pickle

import pytest

from lanterne.errors import InputError
from lanterne.pipeline.adapt.suspect import Suspect


@pytest.mark.parametrize(
    ("suspect", "text", "ends"),
    [
        (Suspect.rank(3), "rank 3", (3,)),
        (Suspect.link(1, 2), "link 1-2", (1, 2)),
        (Suspect.link(12, 4), "link 4-12", (4, 12)),
    ],
)
def test_text_and_value_are_one(suspect, text, ends):
    assert (str(suspect), suspect.ends, suspect.is_rank) == (text, ends, len(ends) == 1)
    assert Suspect(text) == suspect and {suspect: 1} == {Suspect(text): 1}
    assert json.loads(json.dumps({suspect: [suspect]})) == {text: [text]}
    for other in (copy.deepcopy(suspect), pickle.loads(pickle.dumps(suspect))):
        assert (other, other.ends) == (suspect, ends), other


@pytest.mark.parametrize(
    "text", ["", "rank", "rank -1", "rank 1.5", "rank 03", "rank ٣", "link 1", "link 2-1", "link 1-1", "calibrated"]
)
def test_what_is_neither_a_rank_nor_a_link_is_refused(text):
    with pytest.raises(InputError, match="suspect: got"):
        Suspect(text)
