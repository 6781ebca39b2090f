"""The exports have the fields that the runtimes' own loaders read, of the types and words that these take.

Facts from the MSCCL parsers (the attributes that they ask of algo, gpu, tb and step; chunks per loop against those of a
rank) and from that of microsoft/mscclpp (src/core/executor/execution_plan.cc and the description of the plan's JSON).
The first MSCCL, inside NCCL 2.8, writes reduce_scatter where msccl-executor-nccl and RCCL write reducescatter.
"""

from xml.etree import ElementTree

import jsonschema
import pytest

from lanterne.collectives.algorithms.catalogue import ALGORITHMS, make_schedule
from lanterne.collectives.schedule.check_schedule import check
from lanterne.collectives.schedule.formats.export_msccl import to_msccl_xml
from lanterne.collectives.schedule.formats.export_mscclpp import to_mscclpp_plan

# Attribute -> the words that may stand there, or int.
BUFFERS = {"i", "o", "s"}
XML = {
    "algo": {
        "name": None,
        "proto": {"Simple", "LL", "LL128"},
        "coll": {"allreduce", "allgather", "reduce", "broadcast", "alltoall", "reducescatter"},
        **dict.fromkeys(("ngpus", "nchannels", "nchunksperloop", "minBytes", "maxBytes", "inplace", "outofplace"), int),
    },
    "gpu": dict.fromkeys(("id", "i_chunks", "o_chunks", "s_chunks"), int),
    "tb": dict.fromkeys(("id", "send", "recv", "chan"), int),
    "step": {
        "type": {"s", "r", "rcs", "rrs", "rrc", "rrcs", "cpy", "re", "nop"},
        "srcbuf": BUFFERS,
        "dstbuf": BUFFERS,
        **dict.fromkeys(("s", "srcoff", "dstoff", "cnt", "depid", "deps", "hasdep"), int),
    },
}
OF = {"algo": "gpu", "gpu": "tb", "tb": "step"}

INT = {"type": "integer", "minimum": 0}


def record(optional=(), **fields):
    """The JSON schema of an object with just these fields."""
    required = [name for name in fields if name not in optional]
    return {"type": "object", "properties": fields, "required": required, "additionalProperties": False}


def several(items):
    return {"type": "array", "items": items}


def words(*some):
    return {"enum": list(some)}


CHANNEL = words("memory", "port", "switch")
PART = record(("type", "buffer_id"), type=words("i", "o", "s"), buffer_id=INT, index=INT, size=INT)
OPERATION = record(
    ("src_buff", "dst_buff", "channel_ids", "channel_type", "semaphore_ids", "reduce_op"),
    name=words("nop", "copy", "put", "signal", "wait", "re", "sem_acquire", "sem_release"),
    src_buff=several(PART),
    dst_buff=several(PART),
    channel_ids=several(INT),
    channel_type=CHANNEL,
    semaphore_ids=several(INT),
    reduce_op=words("sum", "min"),
)
BLOCK = record(
    id=INT,
    ops=several(OPERATION),
    channels=several(record(channel_type=CHANNEL, channel_ids=several(INT))),
    remote_buffer_refs=several(record(access_channel_type=CHANNEL, remote_buffer_ids=several(INT))),
)
GPU = record(
    id=INT,
    input_chunks=INT,
    output_chunks=INT,
    scratch_chunks=INT,
    threadblocks=several(BLOCK),
    channels=several(record(channel_type=CHANNEL, connected_to=several(INT))),
    remote_buffers=several(record(rank=INT, type=words("i", "o", "s"), access_channel_types=several(CHANNEL))),
    semaphores=several(record(init_value=INT)),
)
PLAN = record(
    name={"type": "string"},
    collective=words("allreduce", "reducescatter", "allgather", "alltoall"),
    protocol=words("Simple", "LL"),
    inplace={"type": "boolean"},
    reuse_resources={"type": "boolean"},
    gpus=several(GPU),
    num_threads_per_block=INT,
    use_double_scratch_buffer={"type": "boolean"},
    buffer_alignment=INT,
    min_message_size=INT,
    max_message_size=INT,
)


def check_xml(node, name="algo"):
    """Raise AssertionError where `node` is not a `name` as MSCCL's parser takes it."""
    assert node.tag == name and node.attrib.keys() == XML[name].keys()
    for key, allowed in XML[name].items():
        if allowed is int:
            int(node.get(key))
        elif allowed is not None:
            assert node.get(key) in allowed, (name, key, node.get(key))
    for child in node:
        check_xml(child, OF[name])


def cases(*collectives):
    return [
        pytest.param(line, id=f"{line.collective}-{line.name}")
        for line in ALGORITHMS.values()
        if line.collective in collectives and not line.refuses(4)
    ]


@pytest.mark.parametrize(
    "line", cases("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce")
)
def test_msccl_xml_has_what_its_parser_reads(line):
    root = ElementTree.fromstring(to_msccl_xml(check(make_schedule(line.collective, line.name, 4))))
    check_xml(root)
    # Where a rank has a part of the data only, its chunks are those of the loop over the ranks.
    parts = {"i_chunks": 4 if line.collective == "all_gather" else 1}
    parts["o_chunks"] = 4 if line.collective == "reduce_scatter" else 1
    for gpu in root:
        for key, ranks in parts.items():
            assert int(gpu.get(key)) in (0, int(root.get("nchunksperloop")) // ranks), (gpu, key, ranks)


@pytest.mark.parametrize("line", cases("all_reduce", "reduce_scatter", "all_gather", "all_to_all"))
def test_mscclpp_plan_has_what_its_loader_reads(line):
    jsonschema.validate(to_mscclpp_plan(check(make_schedule(line.collective, line.name, 4))), PLAN)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda plan: plan.pop("name"),
        lambda plan: plan["gpus"][0].pop("channels"),
        lambda plan: plan["gpus"][0]["threadblocks"][0]["ops"][0].update(name="send"),
    ],
)
def test_the_schema_refuses(spoil):
    plan = to_mscclpp_plan(check(make_schedule("all_reduce", "ring", 4)))
    spoil(plan)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(plan, PLAN)
