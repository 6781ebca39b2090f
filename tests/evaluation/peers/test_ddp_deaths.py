"""The score of killed ranks: what counts as wrong; the jobs themselves need PyTorch."""

import pytest

from evaluation.peers.ddp_deaths import NAMED_S, Death, Survivor

GOOD = Survivor(1, 0, "RuntimeError: lanterne: rank 12 failed: died", 0.1, "")


@pytest.mark.parametrize(
    ("survivor", "amid", "starting"),
    [
        (GOOD, None, None),
        (GOOD._replace(code=-11, stderr="Fatal"), "ended with -11: Fatal", "ended with -11: Fatal"),
        (GOOD._replace(told=None), "was told nothing", "was told nothing"),
        (GOOD._replace(told="rank 1 failed"), "was told 'rank 1 failed'", None),
        (GOOD._replace(told="connection reset by peer"), "was told 'connection", None),
        (GOOD._replace(noticed_s=NAMED_S + 1), "was told after 3.00 s", None),
    ],
)
def test_what_is_wrong(survivor, amid, starting):
    death = Death(12, 0.5, (GOOD._replace(rank=0), survivor))
    for moment, expected in (("training", amid), ("starting", starting)):
        found = death.wrong(moment)
        assert found == [] if expected is None else len(found) == 1 and expected in found[0], found
        assert all(line.startswith("rank 12 killed after 0.500 s: rank 1 ") for line in found), (moment, expected)
