"""Device memory over a transport of host memory: whole, in order, and buffers that are used again."""

import threading

import numpy as np
from nccl_ranks import HostArray, HostRuntime

from lanterne.transport.base import Recv, Send
from lanterne.transport.local import LocalWorld
from lanterne.transport.staged import StagedTransport


def on_ranks(function, world_size=2):
    """function(staged transport, its compute stream) on threads."""
    world, runtimes = LocalWorld(world_size), [HostRuntime(rank) for rank in range(world_size)]
    results = ["did not end"] * world_size

    def rank_main(rank):
        transport = world.transport(rank, 20.0)
        compute = runtimes[rank].new_stream()
        try:
            results[rank] = function(StagedTransport(transport, runtimes[rank], compute), compute)
        except Exception as error:
            results[rank] = error
        finally:
            transport.close()

    threads = [threading.Thread(target=rank_main, args=(rank,), daemon=True) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for runtime in runtimes:
        runtime.close()
    return results


def test_messages_of_one_pair_keep_their_order():
    """A host message that is ready at once does not overtake a device message whose copy takes its time."""

    def program(transport, compute):
        me, gate = transport.rank, threading.Event()
        if me == 0:
            out = HostArray(np.full(3_000_000, 1, np.uint8))
            compute.put(gate.wait)
            compute.put(lambda: out.values.fill(2))
            first = transport.post((Send(transport.register(out), 0, 3_000_000, 1),))
            second = transport.post((Send(transport.register(np.full(3_000_000, 3, np.uint8)), 0, 3_000_000, 1),))
            assert not second.test() and second.pending_peers() == [1]
            gate.set()
            first.wait()
            second.wait()
            return None
        got = []
        for _ in range(2):
            into = HostArray(np.zeros(3_000_000, np.uint8))
            transport.post((Recv(transport.register(into), 0, 3_000_000, 0),)).wait()
            got.append(set(into.values.tolist()))
        return got

    assert on_ranks(program) == [None, [{2}, {3}]]


def test_both_directions_and_buffers_used_again():
    def program(transport, _):
        peer = 1 - transport.rank
        for turn in range(20):
            nbytes = (0, 1, 5000, 2_500_000)[turn % 4]
            out, into = HostArray(np.full(nbytes, turn, np.uint8)), HostArray(np.full(nbytes + 6, 255, np.uint8))
            ops = (Recv(transport.register(into), 3, nbytes, peer), Send(transport.register(out), 0, nbytes, peer))
            transport.post(ops).wait()
            assert (into.values[3 : 3 + nbytes] == turn).all(), turn
            assert (into.values[:3] == 255).all() and (into.values[3 + nbytes :] == 255).all(), turn
        return {size: len(free) for size, free in transport._free.items()}

    for kept in on_ranks(program):
        assert isinstance(kept, dict), kept
        assert all(number <= 2 for number in kept.values()), kept
