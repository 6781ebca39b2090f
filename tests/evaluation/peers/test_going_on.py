"""What jobs that go on after a death told of their steps, and what is made of it."""

import io

import pytest

from evaluation.peers.going_on import print_results, times_of


def job(folder, killed_s, told):
    """The files of a job; `told`: (rank, when it began, its steps)."""
    if killed_s is not None:
        (folder / "killed").write_text(str(killed_s))
    for number, (rank, began_s, steps) in enumerate(told):
        lines = [f"{rank} {began_s}", *(f"{at_s} {ranks}" for at_s, ranks in steps)]
        (folder / f"told-{rank}-{number}").write_text("\n".join(lines) + "\n")


WELL = [
    (0, 1.0, [(9.0, 3), (10.1, 3), (10.5, 2), (20.5, 3)]),
    (1, 1.0, [(9.0, 3)]),
    (2, 1.0, [(9.1, 3), (10.7, 2), (20.6, 3)]),
    (1, 12.0, [(20.5, 3), (20.9, 3)]),
]


@pytest.mark.parametrize(
    ("killed_s", "told", "expected"),
    [
        (10.0, WELL, (0.7, 8.5)),
        (10.0, WELL[:3], (0.7, None)),
        (10.0, [WELL[0], *WELL[1:2], (2, 1.0, [(9.1, 3)])], (None, None)),
        (None, WELL, (None, None)),
        (10.0, [], (None, None)),
    ],
    ids=["back", "not back", "one does nothing", "nobody was killed", "nothing"],
)
def test_when_the_next_step_was_done(tmp_path, killed_s, told, expected):
    job(tmp_path, killed_s, told)
    assert tuple(times_of(tmp_path, 1, 3).values()) == pytest.approx(expected)


def test_the_table_has_a_line_of_each_and_all_problems():
    one = {"ranks": 3, "victim": 1, "step": 10, "problem": None, "next_step_s": 0.5, "back_s": 3.0}
    failed = one | {"contender": "torchft", "problem": "no back_s", "back_s": None}
    file = io.StringIO()
    print_results({"results": [one | {"contender": "lanterne"}, failed]}, file)
    lines = file.getvalue().splitlines()
    assert [line.split()[:3] for line in lines if line.startswith(("lanterne", "torchft "))] == [
        ["lanterne", "1", "0"],
        ["torchft", "1", "1"],
    ]
    assert any("torchft, rank 1: no back_s" in line for line in lines)
