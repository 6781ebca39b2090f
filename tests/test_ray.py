"""Ray's collective backend, over stand-ins of what it takes from Ray: its base of groups, registry and store."""

import sys
import threading
import types
from enum import Enum
from types import SimpleNamespace

import numpy as np
import pytest

SIZE = 3


class ReduceOp(Enum):
    SUM = 0
    PRODUCT = 1
    MIN = 2
    MAX = 3


class BaseGroup:
    def __init__(self, world_size, rank, group_name):
        self.world_size, self.rank, self.group_name = world_size, rank, group_name


@pytest.fixture
def ray(monkeypatch):
    """Return lanterne.ray over stand-ins, and what Ray's store holds."""
    kept, registered = {}, {}
    store = SimpleNamespace(
        _internal_kv_put=lambda key, value, overwrite: kept.__setitem__(key, value.encode()),
        _internal_kv_get=kept.get,
        _internal_kv_del=kept.pop,
    )
    parts = {
        "ray.experimental.internal_kv": vars(store),
        "ray.util.collective.backend_registry": {"register_collective_backend": registered.__setitem__},
        "ray.util.collective.collective_group.base_collective_group": {"BaseGroup": BaseGroup},
    }
    for name, names in parts.items():
        folders = name.split(".")
        for depth in range(1, len(folders) + 1):
            module = types.ModuleType(".".join(folders[:depth]))
            module.__path__ = []
            monkeypatch.setitem(sys.modules, module.__name__, sys.modules.get(module.__name__, module))
        vars(sys.modules[name]).update(names)
        for depth in range(1, len(folders)):
            monkeypatch.setattr(
                sys.modules[".".join(folders[:depth])],
                folders[depth],
                sys.modules[".".join(folders[: depth + 1])],
                raising=False,
            )
    monkeypatch.delitem(sys.modules, "lanterne.ray", raising=False)
    import lanterne.ray

    assert registered == {"LANTERNE": lanterne.ray.LanterneGroup}
    yield lanterne.ray, kept
    sys.modules.pop("lanterne.ray")


def options(**given):
    return SimpleNamespace(**{"reduceOp": ReduceOp.SUM, "root_rank": 0} | given)


def verbs(group, rank):
    """What each verb gives on this rank."""
    found = {}
    for op in ReduceOp:
        x = np.full((2, 3), rank + 1.0, np.float32)
        group.allreduce([x], options(reduceOp=op))
        found[op.name] = x
    group.broadcast([x := np.full(4, rank)], options(root_rank=1))
    found["broadcast"] = x
    group.reduce([x := np.full(4, rank + 1)], options(root_rank=2))
    found["reduce"] = x
    parts = [np.zeros((2, 2)) for _ in range(SIZE)]
    group.allgather([parts], [np.full((2, 2), float(rank))])
    found["allgather"] = np.concatenate(parts)
    x = np.zeros(3)
    group.reducescatter([x], [[np.full(3, 10.0 * rank + place) for place in range(SIZE)]], options())
    found["reducescatter"] = x
    if rank == 0:
        group.send([np.arange(4)], options(dst_rank=1))
    if rank == 1:
        group.recv([x := np.zeros(4, int)], options(src_rank=0))
        found["recv"] = x
    group.barrier()
    return found


EXPECTED = {
    "SUM": lambda rank: np.full((2, 3), 6),
    "PRODUCT": lambda rank: np.full((2, 3), 6),
    "MIN": lambda rank: np.full((2, 3), 1),
    "MAX": lambda rank: np.full((2, 3), 3),
    "broadcast": lambda rank: np.full(4, 1),
    "reduce": lambda rank: np.full(4, 6 if rank == 2 else rank + 1),
    "allgather": lambda rank: np.repeat(np.arange(3), 4).reshape(6, 2),
    "reducescatter": lambda rank: np.full(3, 30 + 3 * rank),
    "recv": lambda rank: np.arange(4),
}


def test_verbs_and_a_second_group_of_the_name(ray, monkeypatch):
    monkeypatch.setenv("LANTERNE_TRANSPORT", "tcp")
    module, kept = ray
    found, errors = {}, []

    def be_rank(rank):
        try:
            for _ in range(2):
                group = module.LanterneGroup(SIZE, rank, "gradients")
                found[rank] = verbs(group, rank)
                group.destroy_group()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=be_rank, args=(rank,)) for rank in range(SIZE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert not kept
    for rank in range(SIZE):
        for verb, value in found[rank].items():
            assert np.array_equal(value, EXPECTED[verb](rank)), (rank, verb, value)
    assert set().union(*found.values()) == set(EXPECTED)


def test_what_cannot_be_is_refused(ray):
    group = ray[0].LanterneGroup(1, 0, "alone")
    with pytest.raises(ValueError, match="allreduce: got 2 arrays, expected one"):
        group.allreduce([np.zeros(1), np.zeros(1)], options())
    with pytest.raises(ValueError, match="allreduce: got an array that is not contiguous"):
        group.allreduce([np.zeros((4, 4))[:, :2]], options())
    with pytest.raises(ValueError, match=r"allgather: got 2 arrays of \[1, 2\] elements, expected 1 of 1"):
        group.allgather([[np.zeros(1), np.zeros(2)]], [np.zeros(1)])
    group.destroy_group()
