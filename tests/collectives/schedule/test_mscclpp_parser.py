"""Plans are what MSCCL++'s own parser, compiled against stubs of CUDA's types, understands them to be.

Nothing of MSCCL++ is in this tree: the tests want a checkout of github.com/microsoft/mscclpp (1f5f065 was read), named
by LANTERNE_MSCCLPP, g++ and Debian's nlohmann-json3-dev.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lanterne.collectives.algorithms.catalogue import ALGORITHMS, make_schedule
from lanterne.collectives.schedule.check_schedule import check
from lanterne.collectives.schedule.formats import export_mscclpp
from lanterne.collectives.schedule.formats.export_mscclpp import to_mscclpp_plan

HERE = Path(__file__).parent / "mscclpp"
SOURCE = Path(os.environ.get("LANTERNE_MSCCLPP", "/nonexistent"))
PARSER = SOURCE / "src/core/executor/execution_plan.cc"
# Bytes of a chunk; a multiple of the plans' alignment.
UNIT = 64

pytestmark = pytest.mark.skipif(
    not PARSER.exists() or shutil.which("g++") is None,
    reason="needs g++ and LANTERNE_MSCCLPP, a checkout of github.com/microsoft/mscclpp",
)


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """load(plan, rank) -> what the parser says of it, or the line with which it refuses, as a str."""
    folder = tmp_path_factory.mktemp("mscclpp")
    includes = [f"-I{HERE / 'stubs'}", f"-I{SOURCE / 'include'}", f"-I{SOURCE / 'src/core/include'}"]
    sources = [str(HERE / "loader.cc"), str(PARSER)]
    command = ["g++", "-std=c++17", "-fno-access-control", *includes, *sources, "-o", str(folder / "loader")]
    subprocess.run(command, check=True, timeout=300)

    def run(plan, rank):
        path = folder / "plan.json"
        path.write_text(json.dumps(plan))
        gpu = plan["gpus"][rank]
        sizes = [str(gpu[key] * UNIT) for key in ("input_chunks", "output_chunks")]
        words = [str(folder / "loader"), str(path), str(rank), *sizes, str(len(plan["gpus"]))]
        result = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
        return json.loads(result.stdout) if not result.returncode else result.stderr.strip()

    return run


def in_bytes(operation):
    """An operation of a plan as the parser says it."""
    said = {key: value for key, value in operation.items() if key not in ("channel_type", "reduce_op")}
    for key in {"src_buff", "dst_buff"} & operation.keys():
        said[key] = [
            {name: value for name, value in part.items() if name not in ("index", "size")}
            | {"offset": part["index"] * UNIT, "nbytes": part["size"] * UNIT}
            for part in operation[key]
        ]
    return said


@pytest.mark.parametrize("world_size", [2, 4, 8])
@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, id=f"{line.collective}-{line.name}")
        for line in ALGORITHMS.values()
        if line.collective in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
    ],
)
def test_the_parser_understands_each_plan(load, line, world_size):
    if line.refuses(world_size):
        pytest.skip(line.refuses(world_size))
    plan = to_mscclpp_plan(check(make_schedule(line.collective, line.name, world_size)))
    for rank, gpu in enumerate(plan["gpus"]):
        said = load(plan, rank)
        assert not isinstance(said, str), (rank, said)
        assert (said["name"], said["collective"]) == (plan["name"], plan["collective"]), rank
        assert said["peers"] == gpu["channels"][0]["connected_to"] and not said["num_unpaired"], rank
        remote = [{"rank": each["rank"], "type": "s"} for each in gpu["remote_buffers"]]
        assert said["remote_buffers"] == remote, rank
        assert said["scratch_nbytes"] == gpu["scratch_chunks"] * UNIT, rank
        assert said["num_semaphores"] == len(gpu["semaphores"]) <= said["limits"]["semaphores"], rank
        for block, told in zip(said["blocks"], gpu["threadblocks"], strict=True):
            assert block["ops"] == [in_bytes(operation) for operation in told["ops"]], rank
            assert len(block["ops"]) <= said["limits"]["operations"], rank
            assert block["channel_ids"] == told["channels"][0]["channel_ids"], rank
            assert block["remote_buffer_ids"] == told["remote_buffer_refs"][0]["remote_buffer_ids"], rank


def test_the_limits_are_those_of_its_headers(load):
    limits = load(to_mscclpp_plan(check(make_schedule("all_reduce", "ring", 2))), 0)["limits"]
    ours = export_mscclpp._MAX_OPERATIONS, export_mscclpp._MAX_PER_OPERATION, export_mscclpp._MAX_PEERS
    assert (limits["operations"], limits["channels_per_operation"], limits["channels"]) == ours
    assert limits["semaphores"] == export_mscclpp._MAX_BLOCKS - 1


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (lambda gpu: gpu["threadblocks"][0]["ops"][0].update(name="send"), "Invalid operation type: send"),
        (lambda gpu: gpu["threadblocks"][0]["ops"][0]["src_buff"][0].update(type="x"), "Invalid buffer type"),
        (lambda gpu: gpu.update(id=3), "GPU rank does not match"),
        (lambda gpu: gpu["channels"][0].update(channel_type="wire"), "Invalid channel type"),
    ],
)
def test_the_parser_refuses_a_spoilt_plan(load, spoil, line):
    plan = to_mscclpp_plan(check(make_schedule("all_reduce", "ring", 4)))
    spoil(plan["gpus"][0])
    assert load(plan, 0) == line
