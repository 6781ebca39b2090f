"""Execution traces: read by Google's own protocol buffers, and replayed they cost what the model says."""

import pytest

from lanterne.collectives.algorithms.catalogue import make_schedule
from lanterne.collectives.schedule.check_schedule import check
from lanterne.collectives.schedule.cost import CostModel, price
from lanterne.collectives.schedule.formats.export_chakra import RECV, SEND, to_chakra

pytest.importorskip("google.protobuf")

# Of et_def.proto, what we write: message -> (name, number, type, repeated).
FIELDS = {
    "Attribute": [
        ("name", 1, "STRING", False),
        ("int32_val", 7, "INT32", False),
        ("int64_val", 9, "INT64", False),
        ("bool_val", 27, "BOOL", False),
    ],
    "Metadata": [("version", 1, "STRING", False)],
    "Node": [
        ("id", 1, "UINT64", False),
        ("name", 2, "STRING", False),
        ("type", 3, "INT32", False),
        ("data_deps", 5, "UINT64", True),
        ("attr", 10, "MESSAGE", True),
    ],
}


@pytest.fixture(scope="module")
def messages():
    """Google's classes of the three messages."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="et.proto", package="et", syntax="proto3")
    for title, fields in FIELDS.items():
        message = file.message_type.add(name=title)
        for name, number, kind, repeated in fields:
            field = message.field.add(name=name, number=number, label=3 if repeated else 1)
            field.type = getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{kind}")
            if kind == "MESSAGE":
                field.type_name = ".et.Attribute"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {title: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"et.{title}")) for title in FIELDS}


def parts(data):
    """The messages behind their lengths."""
    at = 0
    while at < len(data):
        size = shift = 0
        while True:
            byte = data[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        yield data[at : at + size]
        at += size
    assert at == len(data)


def read(data, messages):
    head, *nodes = parts(data)
    assert messages["Metadata"].FromString(head).version
    found = []
    for node in map(messages["Node"].FromString, nodes):
        values = {each.name: each.int32_val + each.int64_val + each.bool_val for each in node.attr}
        assert values.pop("is_cpu_op") == 0, node
        found.append((node.type, values, list(node.data_deps)))
        assert node.id == len(found) - 1, node
    return found


@pytest.mark.parametrize("name", ["ring", "rhd", "late_join", "allpairs"])
def test_traces_replay_as_the_model_has_them(name, messages):
    """In a replay every node waits for what it depends on, and both ends of a message for each other."""
    schedule, model = make_schedule("all_reduce", name, 5), CostModel(3e-6, 1e-9)
    nbytes = 60_000 * schedule.num_chunks
    traces = [read(data, messages) for data in to_chakra(check(schedule), nbytes)]
    ends = {}
    for rank, trace in enumerate(traces):
        for number, (kind, values, _) in enumerate(trace):
            assert rank == values["comm_src" if kind == SEND else "comm_dst"], (rank, trace, number, kind, values)
            ends.setdefault(tuple(values[f"comm_{key}"] for key in ("src", "dst", "tag", "size")), {})[kind] = number
    assert all(set(both) == {SEND, RECV} for both in ends.values())
    assert sum(values["comm_size"] for trace in traces for kind, values, _ in trace if kind == SEND) == (
        60_000 * schedule.num_transfers
    )
    if name == "allpairs":  # ports of several messages are the simulator's matter
        return
    done = {}
    while len(done) < sum(map(len, traces)):
        for (src, dst, _, size), both in ends.items():
            sides = (src, both[SEND]), (dst, both[RECV])
            needed = [(rank, dep) for rank, number in sides for dep in traces[rank][number][2]]
            if sides[0] not in done and all(dep in done for dep in needed):
                at_s = max((done[dep] for dep in needed), default=0.0) + model.message_s(float(size))
                done |= dict.fromkeys(sides, at_s)
    assert max(done.values()) == pytest.approx(price(schedule, nbytes, model).makespan_s)
