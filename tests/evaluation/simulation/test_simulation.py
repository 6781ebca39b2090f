"""Simulated jobs: hundreds of seeds hold, each replays step by step, and code with a fault is found."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import mutants
import pytest
from processes import MARK, assert_none_left, marked, wait_until

from evaluation.__main__ import EVALUATE
from evaluation.simulation import baton as baton_module
from evaluation.simulation import calls, scenario, simulate, world
from evaluation.simulation.baton import Baton, Killed
from evaluation.simulation.judge import named
from evaluation.simulation.scenario import Event, Scenario, draw
from evaluation.simulation.shrink import shrink
from evaluation.simulation.simulated_machine import SimulatedMachine, guard
from lanterne.transport.machine import THIS_MACHINE
from lanterne.transport.store import membership

PORTIONS = [range(first, first + simulate.PORTION) for first in range(0, 160, simulate.PORTION)]
# Turned conditions that are tried one by one.
SAMPLE = (
    "lanterne.transport.store.membership.epoch Epoch.gather",
    "lanterne.transport.store.values KeyValues._add",
    "lanterne.transport.board.sequencer Sequencer._advance",
    "lanterne.transport.rank_group Group.check_peers",
)


@pytest.mark.parametrize("portion", PORTIONS, ids=lambda portion: f"{portion[0]}-{portion[-1]}")
def test_all_is_well(portion):
    assert [each for each in simulate.simulate_portion(portion, None) if each["problems"]] == []


def scenario_of(*events, calls=(("all_reduce ring", 64), ("broadcast", 7)), ranks=5, transport="tcp", seed=1):
    return Scenario(seed, transport, ranks, tuple(calls), tuple(events))


@pytest.mark.parametrize("seed", [0, 3, 17, 21, 39])
def test_a_seed_replays_in_another_process(seed):
    code = "from evaluation.simulation import world, scenario\n"
    code += f"print(world.run(scenario.draw({seed})).digest)"
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    other = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert int(other.stdout) == world.run(draw(seed)).digest == world.run(draw(seed), traced=True).digest


def test_every_world_is_drawn_and_has_its_own_calls():
    drawn = [draw(seed) for seed in range(200)]
    assert {each.transport for each in drawn} == set(scenario.TRANSPORTS)
    kinds = {event.kind for each in drawn for event in each.events}
    assert kinds == set(scenario.EVENTS)
    for each in drawn:
        assert {kind for kind, _ in each.calls} <= scenario.shares_of(each.transport).keys(), each


def test_paths_die_in_these_worlds_and_messages_come_all_the_same():
    found = world.World(scenario_of(Event("path", 1, 300, 0.0, 2), Event("reset", 3, 300, 0.9, 0), transport="spare"))
    assert found.run().problems == ()
    assert [moved[0] for moved in found.fate.spares[1].moved] == [2]
    carried = world.World(
        scenario_of(Event("reset", 1, 180, 0.0, 2), calls=[("ring", 3000)] * 9, transport="delegates", ranks=4)
    )
    assert carried.run().problems == ()
    lost = [each.dropped for each in carried.carriers.values() if each.dropped]
    assert lost and [each.returned for each in carried.carriers.values() if each.returned]


def test_an_engine_advances_calls_here():
    made = world.World(scenario_of(calls=[("background", 500)] * 3), traced=True)
    outcome = made.run()
    assert outcome.problems == () and any(who.endswith(" lanterne") for _, who, _ in outcome.trace)


def test_seeds_differ():
    assert len({world.run(draw(seed, "tcp")).digest for seed in range(5)}) == 5


# Found by seeds of the first version: what fell, and what was wrong with it.
FOUND = {
    "rank dies while rails are made: named at once, nothing stays open": (Event("kill", 0, 98), 5, 28),
    "rank dies between the two exchanges of the rails: listeners are closed": (Event("kill", 3, 60), 6, 154),
    "rank that joined first dies before others come: the store stays": (Event("kill", 2, 33), 7, 163),
    "rank never joins: all name it, not who gave up first": (Event("kill", 3, 3), 7, 24),
    "rank dies, then its neighbours give up: the first is named": (Event("kill", 1, 104), 4, 66),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found(name):
    event, ranks, seed = FOUND[name]
    for step in range(max(1, event.step - 6), event.step + 6):
        found = world.run(scenario_of(replace(event, step=step), ranks=ranks, seed=seed))
        assert not found.problems, step
        assert found.seconds < 15, step


# As FOUND, of the third version, over other transports: what befell whom, in which job.
LATER = {
    "rank with a guard dies before a call at the board: the guard's word is told": (
        Event("kill", 4, 86), "store", 8, 2267, ["seats 500", "guards 7", "seats 2"]
    ),
    "rank dies before it comes to the board: it is named, not who gave up because of it": (
        Event("restart", 2, 42, 1.82), "store", 5, 6744, ["seats 1", "exchange 1"]
    ),
    "rank that was away hears of all that have left at once: it names the first": (
        Event("restart", 5, 3, 0.134), "store", 8, 5384, ["seats 3000"]
    ),
    "rank dies while delegates make rails: named at once, not after 30 s": (
        Event("kill", 0, 72), "delegates", 4, 320, ["everybody 7"]
    ),
    "delegate dies while rails are made: its rank is named, not one that has given up": (
        Event("delegate", 3, 80), "delegates", 4, 432, ["ring 7"]
    ),
    "path goes silent to a rank that looks rarely: rails take over": (
        Event("path", 4, 395, 0.981, 3), "spare", 5, 8046, ["board 7", "barrier 7", "all_reduce ring 64"]
    ),
    "path is cut while a rank leaves, for longer than leavers are waited for: its messages come": (
        Event("cut", 4, 157, 1.54, 6, one_way=True), "tcp", 8, 5676, ["reduce_scatter 1"]
    ),
    "rank is stopped, another leaves: whoever waits for mail of any rank waits for the stopped one": (
        Event("stop", 0, 6, 1.6), "local", 4, 6124, ["reduce_scatter 2", "mail 3000"]
    ),
    "rank is stopped until others have left: what has come meanwhile is there": (
        Event("stop", 4, 23, 1.61), "local", 6, 3789, ["all_reduce ring 3000", "seats 1"]
    ),
    "rank freezes when others are through and gone: it is named, not they": (
        Event("freeze", 2, 1239, 60.0), "tcp", 8, 4018,
        ["all_reduce tree 64", "all_reduce ring 2", "neighbours 64", "seats 2", "board 64"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("step", [-2, -1, 0, 1])
@pytest.mark.parametrize("name", LATER)
def test_what_was_found_later(name, step):
    event, transport, ranks, seed, texts = LATER[name]
    kinds = [(kind, int(count)) for kind, _, count in (text.rpartition(" ") for text in texts)]
    event = replace(event, step=event.step + step)
    assert world.run(scenario_of(event, calls=kinds, ranks=ranks, transport=transport, seed=seed)).problems == ()


@pytest.mark.parametrize("event", [Event("kill", 2, 260), Event("freeze", 2, 260, 30.0)], ids=str)
def test_who_falls_is_named_by_all_others(event):
    made = world.World(scenario_of(event, calls=[("all_reduce ring", 500)] * 30))
    assert made.run().problems == ()
    errors = [each.error for rank, each in enumerate(made.ranks) if rank != 2]
    assert all(2 in named(error) for error in errors)


def test_a_cut_of_one_direction_holds_up_that_direction():
    baton = Baton(3)
    machine, heard = SimulatedMachine(baton), {}

    def listen():
        listener = machine.listen("127.0.0.1", 5)
        sock, _ = listener.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 4000)
        machine.network.cut("one", "other", baton.now_s + 30.0, one_way=True)
        sock.sendall(b"to one")
        sock.settimeout(3.0)
        with pytest.raises(TimeoutError):
            sock.recv(9)
        sock.settimeout(9.0)
        with pytest.raises(TimeoutError, match="timed out"):
            sock.recv(9)
        heard["other"] = baton.now_s

    def connect():
        machine.sleep(0.1)
        sock = machine.connect(("127.0.0.1", 5), 1.0)
        heard["one"] = sock.recv(9)
        sock.sendall(b"to other")
        machine.sleep(9.0)
        with pytest.raises(TimeoutError):
            machine.connect(("127.0.0.1", 5), 1.0)

    actors = [baton.start("other", listen), baton.start("one", connect)]
    assert baton.run(60.0) == [] and [each.error for each in actors] == [None, None]
    assert heard["one"] == b"to one" and 3.5 < heard["other"] < 6.0


def test_a_wrong_element_is_seen(monkeypatch):
    make = calls.Call.every
    monkeypatch.setattr(calls.Call, "every", lambda *args: make(*args) + 1)
    assert any(problem.startswith("wrong: ") for problem in world.run(scenario_of()).problems)


def test_a_late_write_is_seen(monkeypatch):
    keep = calls.Call.keep

    def keep_and_write(call, got, expected):
        keep(call, got, expected)
        got += call.communicator.rank == 1

    monkeypatch.setattr(calls.Call, "keep", keep_and_write)
    assert any(problem.startswith("written later: rank 1") for problem in world.run(scenario_of()).problems)


def test_a_hang_is_seen(monkeypatch):
    monkeypatch.setitem(calls.CALLS, "barrier", lambda call: call.communicator.transport.machine.sleep(1e6))
    problems = world.run(scenario_of(calls=[("barrier", 1)])).problems
    assert "world.py" not in problems[0] and any(problem.startswith("hang: ") for problem in problems)


# Looked up when they are called: the guard replaces them.
ESCAPES = {
    "a real sleep": lambda: time.sleep(0.01),
    "the real clock": lambda: time.monotonic(),  # noqa: PLW0108
    "a machine that was not handed in": lambda: THIS_MACHINE.sleep(0.01),
    "a real connection": lambda: THIS_MACHINE.connect(("127.0.0.1", 1), 1.0),
    "a real socket": lambda: socket.socket(),  # noqa: PLW0108
    "a pair of real sockets": lambda: socket.socketpair(),  # noqa: PLW0108
}


@pytest.mark.parametrize("name", ESCAPES)
def test_an_escape_is_named_by_its_line(name):
    baton = Baton(0)
    actor = baton.start("rank 0", ESCAPES[name])
    with guard():
        baton.run(1.0)
    assert __file__ in str(actor.error) and "expected the machine that it was handed" in str(actor.error)
    time.sleep(0)  # which works again


def test_a_wait_for_what_is_not_simulated_is_named_by_its_line(monkeypatch):
    monkeypatch.setattr(baton_module, "ESCAPED_S", 0.05)
    monkeypatch.setitem(calls.CALLS, "barrier", lambda call: threading.Event().wait(3.0))
    outcome = world.run(scenario_of(calls=[("barrier", 1)]))
    assert re.fullmatch(r"escaped: rank \d keeps the baton for 0.05 s: threading.py:\d+ wait < .*", outcome.problems[0])


def test_a_world_that_was_stopped_is_not_taken_for_one_that_waits_outside():
    idleness = baton_module._Idleness()
    looks = baton_module.LOOKS
    assert not any(idleness.look(7, 60.0) for _ in range(3 * looks)), "this process did not run"
    assert not any(idleness.look(7, 1.0) for _ in range(looks - 1))
    assert not idleness.look(8, 1.0), "it moved"
    assert [idleness.look(8, 1.0) for _ in range(looks)] == [False] * (looks - 1) + [True]


def test_a_killed_process_does_nothing_more():
    baton, done = Baton(0), []
    machine = SimulatedMachine(baton)

    def victim():
        try:
            machine.sleep(5.0)
        finally:
            with pytest.raises(Killed):
                machine.sleep(1.0)
            done.append("unwound")

    actor = baton.start("rank 0", victim)
    baton.after(1.0, lambda: baton.kill(actor))
    assert baton.run(10.0) == [] and done == ["unwound"] and baton.now_s < 2.0


def test_shrinking_leaves_what_it_takes():
    big = scenario_of(
        Event("stop", 0, 9, 0.1), Event("kill", 1, 40), Event("loss", 2, 5, 0.3),
        calls=[("barrier", 1), ("broadcast", 500), ("all_gather", 64)], ranks=6,
    )  # fmt: skip
    small = shrink(big, lambda each: any(event.kind == "kill" for event in each.events))
    assert (small.events, small.ranks, len(small.calls), small.calls[0][1]) == ((Event("kill", 1, 40),), 2, 1, 1)


def test_a_scenario_survives_its_file(tmp_path):
    for seed in range(50):
        drawn = draw(seed)
        assert scenario.from_json(json.loads(json.dumps(drawn.to_json())), "file") == drawn, seed
        scenario.check(drawn, "seed")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"simulation_version": 0}, "got a seed of version 0, expected 3"),
        ({"transport": "mpi"}, "transport: got 'mpi'"),
        ({"ranks": 1}, "got 1 ranks, expected 2 to 64"),
        ({"calls": [["dance", 3]]}, "call: got 'dance'"),
        ({"calls": [["barrier", 0]]}, "got a call of 0 elements"),
        ({"events": [{"kind": "flood", "rank": 0, "step": 1}]}, "event of tcp: got 'flood'"),
        ({"events": [{"kind": "kill", "rank": 9, "step": 1}]}, "got the event kill of rank 9"),
        ({"events": [{"kind": "kill", "rank": 0, "step": 0}]}, "expected ranks of 5 and steps from 1"),
        ({"events": [{"kind": "kill"}]}, "got what is no scenario"),
        ({"events": [{"kind": "kill", "rank": "two", "step": 1}]}, "got what is no scenario"),
        ({"events": [{"kind": "cut", "rank": 2, "other": 2, "step": 1}]}, "expected two processes"),
        ({"events": [{"kind": "stop", "rank": 2, "seconds": -1.0, "step": 1}]}, "lasts -1 s, expected 0 or more"),
        ({"events": [{"kind": "kill", "rank": 2, "one_way": True, "step": 1}]}, "one way, expected one of cut"),
        ({"transport": "store"}, "call: got 'all_reduce ring'"),
        ({"transport": "local", "events": [{"kind": "cut", "rank": 0, "step": 1}]}, "event of local: got 'cut'"),
    ],
)
def test_a_bad_seed_file_is_one_line(tmp_path, capsys, change, message):
    path = tmp_path / "seed.json"
    path.write_text(json.dumps(scenario_of().to_json() | change))
    assert EVALUATE.main(["replay", str(path)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_the_command(mark, number):
    command = [sys.executable, "-P", "-m", "evaluation", "simulate", "--seeds", "10000", "--jobs", "2"]
    process = subprocess.Popen(command, env=os.environ | {MARK: mark}, stdout=-3, stderr=-3)
    assert wait_until(lambda: len(marked(mark, "spawn_main")) == 2)
    process.send_signal(number)
    assert process.wait(20) == -number
    assert_none_left(mark)


def test_the_commands(tmp_path, capsys, monkeypatch):
    assert EVALUATE.main(["simulate", "--seeds", "3", "--json", str(tmp_path / "runs.json")]) == 0
    assert "3 seeds, 0 fail" in capsys.readouterr().out
    document = json.loads((tmp_path / "runs.json").read_text())
    assert [each["seed"] for each in document["results"]] == [0, 1, 2]
    assert document["simulation_version"] == scenario.VERSION
    monkeypatch.setitem(calls.CALLS, "broadcast", lambda call: call.outcome.wrong.append("on purpose"))
    seed = next(seed for seed in range(100) if any("broadcast" in kind for kind, _ in draw(seed).calls))
    assert EVALUATE.main(["simulate", "--first", str(seed), "--seeds", "1", "--jobs", "1", "--out", str(tmp_path)]) == 1
    assert f"./run evaluate replay {seed}" in capsys.readouterr().out
    file, small = str(tmp_path / f"seed-{seed}.json"), str(tmp_path / "small.json")
    assert EVALUATE.main(["replay", file, "--shrink", "--last", "3", "--out", small]) == 1
    out = capsys.readouterr().out
    assert "on purpose" in out and len(out.split("\n\n")[0].splitlines()) == 3
    assert json.loads((tmp_path / "small.json").read_text())["calls"] == [["broadcast", 1]]


@pytest.mark.parametrize("patch", sorted(mutants.REVERTED.glob("*.patch")), ids=lambda patch: patch.stem)
def test_a_fault_that_was_is_found(patch, tmp_path):
    seed = int(re.search(r"^Seed: (\d+)$", patch.read_text(), re.MULTILINE)[1])
    assert mutants.hunt(None, range(seed, seed + 1), mutants.patched(patch, tmp_path))[0] == 1
    assert not world.run(draw(seed)).problems


def test_all_files_of_membership_are_turned():
    folder = Path(membership.__file__).parent
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert {f"{membership.__name__}.{name}" for name in files} <= set(mutants.MODULES)
    turned = {name.split()[0] for name in mutants.all_mutants()}
    assert turned == set(mutants.MODULES), "each has conditions"


def test_what_is_not_found_is_there_and_little():
    left, names = json.loads(mutants.LEFT.read_text()), list(mutants.all_mutants())
    assert {*left} <= {*names}, "each is the name of a condition"
    assert len(left) <= 0.1 * len(names)
    assert all(each["why"] for each in left.values())


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [name for name in mutants.all_mutants() if name.startswith(SAMPLE)])
def test_some_turned_conditions_are_found(mutant):
    count, what = mutants.hunt(mutant, range(100))
    assert count not in (mutants.NOT, mutants.SLOW), what


def test_a_sweep_goes_on_where_it_was_ended(tmp_path):
    path = tmp_path / "outcomes"
    log = mutants.Log(path)
    log.note("found", 10, 3, "hang")
    log.note("left", 10, mutants.NOT, "")
    again = mutants.Log(path)
    assert again.tried("found") == [10, 3, "hang"] and not again.is_left("found", 100)
    assert again.is_left("left", 100) and not again.is_left("left", 10) and again.is_left("new", 10)


@pytest.mark.parametrize(
    ("said", "code", "outcome"),
    [
        ("1\n2\n3\n", -signal.SIGXCPU, (3, "runs without end: 30 s in one seed")),
        ("1\n2\nSegmentation fault\n", -signal.SIGSEGV, (2, "Segmentation fault")),
        ("1\n2\n", 0, (mutants.NOT, "")),
    ],
    ids=["one seed does not end", "it falls", "it holds"],
)
def test_how_a_mutant_was_found(monkeypatch, said, code, outcome):
    done = subprocess.CompletedProcess([], code, stdout="", stderr=said)
    monkeypatch.setattr(mutants.subprocess, "run", lambda *_args, **_options: done)
    assert mutants.hunt("a mutant", range(10)) == outcome


@pytest.mark.slow
def test_nine_in_ten_turned_conditions_are_found():
    names = list(mutants.all_mutants())
    missed = [name for name in names if mutants.hunt(name, range(1000))[0] in (mutants.NOT, mutants.SLOW)]
    assert len(missed) <= 0.1 * len(names), "\n".join(missed)
