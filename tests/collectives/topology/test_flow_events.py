"""The loop over events as it is run, LLVM's code from a file: made of this source, and the same bits as Python's."""

import hashlib
import itertools
import re
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest

from lanterne.bench.topology.random_clusters import random_topologies
from lanterne.collectives.algorithms.catalogue import make_schedule
from lanterne.collectives.schedule.cost import late_start
from lanterne.collectives.topology import flow_events
from lanterne.collectives.topology.flow_events import run_events, text_of_ir
from lanterne.collectives.topology.flows import arguments_of, simulate_flows

SOURCE = Path(flow_events.__file__)
HAD = SOURCE.with_suffix(".ll").read_text()
MAKE = "run python -m lanterne.collectives.topology.flow_events"


def test_the_file_is_of_this_source():
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()
    assert digest in HAD.splitlines()[1], MAKE


def test_it_is_made_again_the_same():
    made = text_of_ir()
    if made.splitlines()[0] != HAD.splitlines()[0]:
        pytest.skip(f"made by{HAD.splitlines()[0][1:]}, here are{made.splitlines()[0][1:]}")
    assert made == HAD, MAKE


@pytest.mark.parametrize("name", ["ring", "tree", "allpairs", "hier_ring", "hier_late_join"])
@pytest.mark.parametrize("number", range(12))
def test_it_does_what_python_does_to_the_bit(number, name):
    topology, late = next(itertools.islice(random_topologies(number + 1, 77), number, None))
    expected = late if "late" in name else None
    schedule = make_schedule("all_reduce", name, topology.world_size, late_rank=expected, nodes=topology.nodes)
    start_s = late_start(topology.world_size, late, 1e-3 * number)
    finish_s = start_s.copy()
    run_events(*arguments_of(schedule, 1 << 20, topology, finish_s))
    np.testing.assert_array_equal(simulate_flows(schedule, 1 << 20, topology, start_s), finish_s)
    assert (finish_s > start_s).all()


@pytest.mark.parametrize(
    ("machine", "cpu"), [("x86_64", "x86-64"), ("x86_64", "x86-64-v4"), ("aarch64", "generic"), ("aarch64", "neoverse-v2")]
)
def test_it_is_for_any_processor_and_calls_but_memset(machine, cpu):
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(f"{machine}-linux-gnu").create_target_machine(cpu=cpu, opt=3)
    assembly = target.emit_assembly(llvm.parse_assembly(HAD))
    assert set(re.findall(r"\t(?:callq?|bl|jmp|b)\t([a-zA-Z_]\w*)", assembly)) <= {"memset"}


def test_it_names_no_machine():
    assert not re.search(r"target |x86|/|Numba|\bPy", re.sub(r"^;.*\n", "", HAD, flags=re.MULTILINE))
