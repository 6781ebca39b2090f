"""The score of hanging programs: who names nothing, or another rank, is wrong."""

import json
from pathlib import Path

import pytest

from evaluation.operators import hang_score


@pytest.mark.parametrize(
    ("kind", "named", "right"),
    [
        *((kind, 0, True) for kind in hang_score.HANGS),
        *((kind, None, False) for kind in hang_score.HANGS),
        *(("skip", 1, False), ("checkpoint", None, True), ("checkpoint", 0, False)),
    ],
)
def test_what_a_watch_named(kind, named, right, monkeypatch):
    """`named`: how many ranks beside the one that hangs; None: nothing was said."""
    seed = 7

    def lines(command, limit_s):
        at, who = int(command[-3]), int(command[-2])
        culprits = [] if named is None else [{"rank": (who + named) % hang_score.RANKS}]
        report = Path(command[command.index("--json") + 1])
        report.write_text(json.dumps({"hangs": [{"culprits": culprits}] if culprits else []}))
        if not culprits:
            return []
        incidents = Path(command[command.index("--incidents") + 1])
        incidents.mkdir()
        (incidents / "1-hang-1.json").write_text(json.dumps({"ranks": culprits}))
        rank = culprits[0]["rank"]
        return [f"lanterne watch: HANGS for 4.2 s: all_reduce {at}, all but rank {rank}"]

    monkeypatch.setattr(hang_score, "_lines", lines)
    assert hang_score._score(kind, seed)["right"] == right
