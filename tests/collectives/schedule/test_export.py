"""The exports, run by small models of the foreign executors: random order, bounded queues, real dependencies."""

import random
from collections import Counter, defaultdict, deque
from xml.etree import ElementTree

import numpy as np
import pytest

from lanterne.collectives.algorithms.catalogue import ALGORITHMS, make_schedule
from lanterne.collectives.schedule.check_schedule import check
from lanterne.collectives.schedule.chunk_layout import input_chunks, output_chunks
from lanterne.collectives.schedule.formats.export_msccl import to_msccl_xml
from lanterne.collectives.schedule.formats.export_mscclpp import to_mscclpp_plan
from lanterne.errors import InputError

SIZES = [1, 2, 3, 4, 5, 8]
MSCCLPP = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")


def data_and_results(schedule):
    """(inputs per rank, expected outputs per rank): one random integer a chunk, results by NumPy."""
    p, m = schedule.world_size, schedule.num_chunks
    values = np.random.default_rng(p).integers(-1000, 1000, (p, m))
    inputs = [values[rank, input_chunks(schedule, rank)] for rank in range(p)]
    total = values.sum(axis=0)
    full = {
        "all_reduce": lambda rank: total,
        "reduce": lambda rank: total if rank == schedule.root else total[:0],
        "reduce_scatter": lambda rank: total.reshape(p, -1)[rank],
        "broadcast": lambda rank: values[schedule.root],
        "all_gather": lambda rank: np.concatenate(inputs),
        "all_to_all": lambda rank: np.concatenate([part.reshape(p, -1)[rank] for part in inputs]),
    }[schedule.collective]
    assert all(len(full(rank)) == len(output_chunks(schedule, rank)) for rank in range(p))
    return inputs, [full(rank).tolist() for rank in range(p)]


def cases(collectives):
    return [
        pytest.param(line, p, id=f"{line.collective}-{line.name}-p{p}")
        for line in ALGORITHMS.values()
        for p in SIZES
        if line.collective in collectives and not line.refuses(p)
    ]


def buffers_of(inputs, counts):
    """One {buffer: list} per rank."""
    return [{"i": data.tolist(), "o": [None] * o, "s": [None] * s} for data, (o, s) in zip(inputs, counts, strict=True)]


def run_xml(text, inputs, seed, queue=2):
    """The output buffers after the thread blocks of all ranks have run in a random order."""
    root = ElementTree.fromstring(text)
    assert [int(gpu.get("id")) for gpu in root] == list(range(int(root.get("ngpus"))))
    memory = buffers_of(inputs, [(int(gpu.get("o_chunks")), int(gpu.get("s_chunks"))) for gpu in root])
    links, done, blocks = defaultdict(deque), {}, []
    for rank, gpu in enumerate(root):
        assert int(gpu.get("i_chunks")) == len(inputs[rank]), (rank, gpu)
        for which in ("send", "recv"):
            peers = Counter((block.get(which), block.get("chan")) for block in gpu if block.get(which) != "-1")
            assert max(peers.values(), default=1) == 1, (rank, gpu, which)
            assert max(Counter(channel for _, channel in peers).values(), default=0) <= 32, (rank, gpu, which)
        for number, block in enumerate(gpu):
            assert int(block.get("id")) == number, (rank, gpu, number, block)
            assert [int(step.get("s")) for step in block] == list(range(len(block))), (rank, gpu, number, block)
            assert len(block) <= 256, (rank, gpu, number, block)
            blocks.append((rank, number, block))
            done[rank, number] = -1
    marked = {
        (rank, number, s) for rank, number, block in blocks for s, step in enumerate(block) if step.get("hasdep") == "1"
    }
    choice, waiting = random.Random(seed), list(blocks)
    while waiting := [entry for entry in waiting if done[entry[:2]] + 1 < len(entry[2])]:
        choice.shuffle(waiting)
        moved = [_xml_step(*entry, memory, links, done, marked, queue) for entry in waiting]
        assert any(moved), "deadlock"
    assert not any(links.values())
    return [buffers["o"] for buffers in memory]


def _xml_step(rank, number, block, memory, links, done, marked, queue):
    """Run the next step of a thread block if it can run; say whether it did."""
    step = block[done[rank, number] + 1].attrib
    kind, other, after = step["type"], int(step["depid"]), int(step["deps"])
    if other >= 0:
        assert (rank, other, after) in marked
        if done[rank, other] < after:
            return False
    here = memory[rank]
    source, target = (step["srcbuf"], int(step["srcoff"])), (step["dstbuf"], int(step["dstoff"]))
    channel = block.get("chan")
    if kind == "s":
        link = links[rank, int(block.get("send")), channel]
        if len(link) == queue:
            return False
        link.append(here[source[0]][source[1]])
        assert link[-1] is not None
    elif kind in ("r", "rrc"):
        link = links[int(block.get("recv")), rank, channel]
        if not link:
            return False
        value = link.popleft()
        here[target[0]][target[1]] = value if kind == "r" else here[source[0]][source[1]] + value
    elif kind == "cpy":
        for i in range(int(step["cnt"])):
            here[target[0]][target[1] + i] = here[source[0]][source[1] + i]
    else:
        assert kind == "nop" and other >= 0
    done[rank, number] += 1
    return True


@pytest.mark.parametrize(
    ("line", "world_size"), cases(("all_reduce", "reduce", "reduce_scatter", "broadcast", "all_gather", "all_to_all"))
)
def test_msccl_xml_computes_the_collective(line, world_size):
    schedule = check(make_schedule(line.collective, line.name, world_size))
    inputs, expected = data_and_results(schedule.schedule)
    text = to_msccl_xml(schedule)
    for seed in range(3):
        assert run_xml(text, inputs, seed, queue=1 + seed) == expected, seed
    assert to_msccl_xml(schedule) == text


def run_plan(plan, inputs, seed):
    """The output buffers after the programs of all ranks have run in a random order."""
    gpus = plan["gpus"]
    memory = buffers_of(inputs, [(gpu["output_chunks"], gpu["scratch_chunks"]) for gpu in gpus])
    signals, semaphores, at = Counter(), Counter(), Counter()
    blocks = [(gpu, block) for gpu in gpus for block in gpu["threadblocks"]]
    for gpu, block in blocks:
        assert len(block["ops"]) <= 64, (gpu, block)
        assert max((len(ids) for entry in block["channels"] for ids in [entry["channel_ids"]]), default=0) <= 16, (
            gpu,
            block,
        )
        assert len(gpu["semaphores"]) <= 16 and len(gpu["remote_buffers"]) <= 16, (gpu, block)
        assert gpu["input_chunks"] == len(inputs[gpu["id"]]) > 0 and gpu["output_chunks"] > 0, (gpu, block)
    choice, waiting = random.Random(seed), list(blocks)
    while waiting := [(gpu, block) for gpu, block in waiting if at[gpu["id"], block["id"]] < len(block["ops"])]:
        choice.shuffle(waiting)
        assert any([_plan_step(gpu, block, memory, signals, semaphores, at) for gpu, block in waiting]), "deadlock"
    assert not +signals and not +semaphores
    return [buffers["o"] for buffers in memory]


def _plan_step(gpu, block, memory, signals, semaphores, at):
    """Run the next operation of a thread block if it can run; say whether it did."""
    rank = gpu["id"]
    op = block["ops"][at[rank, block["id"]]]
    name, here = op["name"], memory[rank]
    (connected,) = gpu["channels"]
    peers = [connected["connected_to"][block["channels"][0]["channel_ids"][i]] for i in op.get("channel_ids", ())]
    assert len(peers) <= 8
    if name == "signal":
        signals.update((rank, peer) for peer in peers)
    elif name == "wait":
        if any(not signals[peer, rank] for peer in peers):
            return False
        signals.subtract((peer, rank) for peer in peers)
    elif name == "sem_release":
        semaphores.update((rank, i) for i in op["semaphore_ids"])
    elif name == "sem_acquire":
        if any(not semaphores[rank, i] for i in op["semaphore_ids"]):
            return False
        semaphores.subtract((rank, i) for i in op["semaphore_ids"])
    elif name in ("copy", "put"):
        (source,), (target,) = op["src_buff"], op["dst_buff"]
        to = here
        if name == "put":
            remote = gpu["remote_buffers"][block["remote_buffer_refs"][0]["remote_buffer_ids"][target["buffer_id"]]]
            assert [remote["rank"]] == peers and remote["type"] == "s"
            to, target = memory[remote["rank"]], {**target, "type": "s"}
        values = here[source["type"]][source["index"] : source["index"] + source["size"]]
        assert None not in values and source["size"] == target["size"]
        to[target["type"]][target["index"] : target["index"] + target["size"]] = values
    elif name == "re":
        (target,) = op["dst_buff"]
        assert op["src_buff"][0] == target and len(op["src_buff"]) <= 10
        for i in range(target["size"]):
            here[target["type"]][target["index"] + i] = sum(
                here[part["type"]][part["index"] + i] for part in op["src_buff"]
            )
    else:
        assert name == "nop"
    at[rank, block["id"]] += 1
    return True


@pytest.mark.parametrize(("line", "world_size"), cases(MSCCLPP))
def test_mscclpp_plan_computes_the_collective(line, world_size):
    schedule = check(make_schedule(line.collective, line.name, world_size))
    inputs, expected = data_and_results(schedule.schedule)
    plan = to_mscclpp_plan(schedule)
    for seed in range(3):
        assert run_plan(plan, inputs, seed) == expected, seed
    assert to_mscclpp_plan(schedule) == plan


def test_what_the_runtimes_cannot_do_is_said():
    barrier = check(make_schedule("barrier", "dissemination", 4))
    with pytest.raises(InputError, match="MSCCL cannot run barrier, expected one of all_reduce, reduce"):
        to_msccl_xml(barrier)
    with pytest.raises(InputError, match=r"MSCCL\+\+ cannot run broadcast, expected one of all_reduce, reduce_scatter"):
        to_mscclpp_plan(check(make_schedule("broadcast", "chain", 4)))
    with pytest.raises(InputError, match="needs over 256 steps"):
        to_msccl_xml(check(make_schedule("all_reduce", "ring", 160)))
    with pytest.raises(InputError, match="needs 129 thread blocks"):
        to_msccl_xml(check(make_schedule("all_reduce", "allpairs", 65)))
    with pytest.raises(InputError, match=r"has 17 peers, MSCCL\+\+ takes at most 16"):
        to_mscclpp_plan(check(make_schedule("all_reduce", "allpairs", 18)))
    with pytest.raises(InputError, match=r"operations, MSCCL\+\+ takes at most 1020"):
        to_mscclpp_plan(check(make_schedule("all_reduce", "ring", 100)))


@pytest.mark.parametrize("export", [to_msccl_xml, to_mscclpp_plan], ids=lambda export: export.__name__)
def test_only_what_was_checked_is_exported(export):
    with pytest.raises(InputError, match="got CollectiveSchedule, expected a CheckedSchedule"):
        export(make_schedule("all_reduce", "ring", 4))
