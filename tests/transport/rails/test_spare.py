"""A transport with spare rails: whatever dies and whenever, every message comes once, in order."""

import re
import threading
import time
from math import inf
from typing import ClassVar

import conformance
import numpy as np
import pytest
from verdicts import verdict

from evaluation.rails.rail_faults import mute
from lanterne.errors import InputError, TransportError
from lanterne.transport.base import Recv, Send, make_tag
from lanterne.transport.local import LocalWorld
from lanterne.transport.rails import rail
from lanterne.transport.rails.paths import Message, Path
from lanterne.transport.rails.spare import SpareTransport

RAILS = ("127.0.0.2", "127.0.0.3")


class World:
    """Threads with spare transports over a local world."""

    def __init__(self, world_size, rails=RAILS, cls=SpareTransport):
        self.world, self.rails, self.cls = LocalWorld(world_size), rails, cls
        self._told, self._barrier = [None] * world_size, threading.Barrier(world_size, timeout=60)

    def _exchange(self, rank, told):
        self._told[rank] = told
        self._barrier.wait()
        every = list(self._told)
        self._barrier.wait()
        return every

    def run(self, function):
        """[function(transport)] by rank, or the exception."""
        results = [None] * self.world.world_size

        def main(rank):
            try:
                inner = self.world.transport(rank, timeout_s=60.0)
                with self.cls(inner, self.rails, lambda told: self._exchange(rank, told)) as transport:
                    results[rank] = function(transport)
            except Exception as error:
                results[rank] = error

        threads = [threading.Thread(target=main, args=(rank,), daemon=True) for rank in range(len(results))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        return results


def test_a_path_knows_what_is_missing():
    here, there = Path(1, granted=inf), Path(0)
    for text in (b"a", b"bb", b"ccc"):
        here.submit(7, Message(memoryview(text)))
    assert [there.post(7, f"place {number}") for number in range(4)] == [0, 1, 2, 3] and not there.lacks(3, 2)
    assert there.complete(7, 0) == "place 0" and there.complete(7, 2) == "place 2"
    assert there.counts(there.news) == [(7, 1, 4)] and there.is_due
    assert there.has(7, 2) and not there.has(7, 1) and there.lacks(7, 3) and not there.lacks(7, 1)
    assert [bytes(message.payload) for message in here.receipt(7, 1, 4)] == [b"a"]
    assert here.sent() == [(7, 3)] and here.unfinished == 2
    assert [(tag, number, bytes(each.payload)) for tag, number, each in (here.take(), here.take())] == [
        (7, 1, b"bb"),
        (7, 2, b"ccc"),
    ]
    there.complete(7, 1)
    here.receipt(*there.counts()[0])
    assert here.sent() == [] and here.unfinished == 0
    with pytest.raises(TransportError, match="receipt for 4 messages, expected at most 3"):
        here.receipt(7, 4, 4)
    here.forget(lambda tag: tag == 7)
    assert here.receipt(7, 4, 4) == []


def dying(how, after):
    """A SpareTransport whose paths are cut at both ends, each when it has posted `after` operations with the peer."""

    class Dying(SpareTransport):
        def _post(self, ops):
            request = super()._post(ops)
            for op in ops:
                if op.peer != self.rank:
                    posts = self.__dict__.setdefault("posts", {})
                    posts[op.peer] = posts.get(op.peer, 0) + 1
                    if posts[op.peer] == after:
                        self.cut(op.peer, how)
            return request

    return Dying


@pytest.mark.parametrize("check", conformance.IN_THREADS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(("how", "after"), [("alive", 0), ("reset", 2)])
def test_conformance(check, how, after):
    cls = SpareTransport if how == "alive" else dying(how, after)
    assert World(3, cls=cls).run(lambda transport: verdict(check, transport)) == [None] * 3


def stream(transport, count=60, sizes=(0, 8, 5000, 300_000), seed=0):
    """Exchange numbered messages on several tags with a peer, receives posted ahead; what came, and the moves."""
    peer, rng = 1 - transport.rank, np.random.default_rng([seed, transport.rank])
    order = np.random.default_rng(seed).permutation(count)
    came = [np.zeros(sizes[index % len(sizes)], np.uint8) for index in range(count)]
    tags = [make_tag(1, index % 3) for index in range(count)]
    receives = [
        transport.post((Recv(transport.register(came[index]), 0, came[index].nbytes, peer, tags[index]),))
        for index in sorted(order, key=lambda index: (index % 3, index))
    ]
    sends = []
    for index in range(count):
        if rng.random() < 0.3:
            transport.progress()
        message = np.full(sizes[index % len(sizes)], index + transport.rank, np.uint8)
        sends.append(transport.post((Send(transport.register(message), 0, message.nbytes, peer, tags[index]),)))
        if index % 10 == 9:
            sends.pop().wait(30)
    for request in (*receives, *sends):
        request.wait(30)
    return all((message == index + peer).all() for index, message in enumerate(came)), len(transport.moved)


@pytest.mark.parametrize("how", ["reset", "silent"])
@pytest.mark.parametrize("after", [1, 64, 100])
def test_no_message_is_lost_or_repeated(how, after):
    assert World(2, cls=dying(how, after)).run(stream) == [(True, 1)] * 2


def test_one_end_that_dies_is_enough():
    class OneEnd(dying("silent", 70)):
        def cut(self, rank, how):
            if self.rank == 0:
                super().cut(rank, how)

    assert World(2, cls=OneEnd).run(stream) == [(True, 1)] * 2


@pytest.mark.parametrize(
    ("cut_rail", "why"),
    [(lambda sock: sock.shutdown(2), ""), (mute, "acknowledged|the peer gave the path up")],
    ids=["reset", "silent"],
)
def test_a_rail_that_dies_too_gives_way_to_the_next(cut_rail, why):
    class Twice(dying("reset", 30)):
        def _post(self, ops):
            rails = self.peers[1 - self.rank].rails
            if self.posts.get(1 - self.rank) == 80 and len(rails) == 2:
                cut_rail(rails[0].sock)
            return super()._post(ops)

        posts: ClassVar = {}

        def __init__(self, *args):
            self.posts = {}
            super().__init__(*args)

        def close(self):
            reasons.append(self.moved[-1][2])
            super().close()

    reasons = []
    assert World(2, cls=Twice).run(stream) == [(True, 2)] * 2
    assert all(re.search(why, reason) for reason in reasons) and len(reasons) >= 2, reasons


def test_a_rail_that_comes_back_is_used_again():
    def go_on(transport):
        peer = transport.peers[1 - transport.rank]
        word = transport.register(np.zeros(1, np.uint8))
        transport.cut(peer.rank, "reset")
        transport.post((Send(word, 0, 1, peer.rank, 5), Recv(word, 0, 1, peer.rank, 5))).wait(30)
        if transport.rank == 0:
            peer.rails[0].sock.shutdown(2)
        until_s = time.monotonic() + 20
        while (peer.rails[0].index, peer.rails[0].life) != (0, 1) and time.monotonic() < until_s:
            transport.progress()
        used = peer.rails[0].index, peer.rails[0].life
        return used, *stream(transport)

    assert World(2).run(go_on) == [((0, 1), True, 2)] * 2


def test_half_of_a_message_on_a_rail_that_dies_is_not_taken_for_the_whole():
    nbytes, is_half_way, is_dead = 16 << 20, threading.Event(), threading.Event()
    message = np.arange(nbytes // 8).view(np.uint8)

    def exchange(transport):
        peer = 1 - transport.rank
        word, whole = transport.register(np.zeros(1, np.uint8)), np.zeros(nbytes, np.uint8)
        transport.cut(peer, "reset")
        transport.post(((Recv, Send)[transport.rank](word, 0, 1, peer, 5),)).wait(10)
        if transport.rank == 0:
            send = transport.post((Send(transport.register(message), 0, nbytes, peer),))
            while not is_half_way.is_set():
                transport.progress()
            transport.peers[peer].rails[0].sock.shutdown(2)
            is_dead.set()
            transport.post((Recv(word, 0, 1, peer, 6),)).wait(10)
            send.wait(10)
        else:
            while not transport.peers[peer].coming:
                transport.progress()
            receive = transport.post((Recv(transport.register(whole), 0, nbytes, peer),))
            is_half_way.set()
            assert is_dead.wait(10)  # who took more before might take the whole
            receive.wait(10)
            transport.post((Send(word, 0, 1, peer, 6),)).wait(10)
        return len(transport.moved), bool((whole == message).all())

    assert World(2).run(exchange) == [(2, False), (2, True)]


def test_without_a_rail_left_the_error_is_told():
    def alone(transport):
        for each in transport.peers[1 - transport.rank].rails:
            each.sock.shutdown(2)
        return stream(transport)

    for result in World(2, rails=RAILS[:1], cls=dying("reset", 50)).run(alone):
        assert isinstance(result, TransportError), result


def test_a_send_that_has_no_path_left_says_why():
    def send(transport):
        peer = transport.peers[1 - transport.rank]
        word = transport.register(np.zeros(1))
        transport.cut(peer.rank, "reset")
        transport.post((Send(word, 0, 8, peer.rank), Recv(word, 0, 8, peer.rank))).wait(10)
        if transport.rank == 0:
            peer.rails[0].sock.shutdown(2)
        while peer.error is None:
            transport.progress()
        transport.post((Send(word, 0, 8, peer.rank),)).wait(10)

    for result in World(2, rails=RAILS[:1]).run(send):
        assert isinstance(result, TransportError) and "the path to rank" in str(result), result


def test_a_path_that_is_only_idle_is_left_alone():
    def idle(transport):
        if transport.rank == 0:
            time.sleep(1.0)
        word = np.zeros(1)
        region, peer = transport.register(word), 1 - transport.rank
        transport.post(((Recv, Send)[transport.rank == 0](region, 0, 8, peer),)).wait(10)
        return transport.moved

    assert World(2).run(idle) == [[], []]


def test_a_rank_that_reads_nothing_for_long_is_not_taken_for_a_lost_host(monkeypatch):
    """Nor is its rail given up: the kernel's limit of a lost host is short here, and the message fills all buffers."""
    monkeypatch.setattr(rail, "SILENT_MS", 300)
    message = np.arange(16 << 20, dtype=np.uint8)

    def hand_on(transport):
        peer, kind = 1 - transport.rank, (Send, Recv)[transport.rank]
        word = transport.register(np.zeros(1, np.uint8))
        transport.cut(peer, "reset")
        transport.post((Send(word, 0, 1, peer, 5), Recv(word, 0, 1, peer, 5))).wait(30)
        if transport.rank == 1:
            time.sleep(2.0)
        whole = message if transport.rank == 0 else np.zeros_like(message)
        transport.post((kind(transport.register(whole), 0, whole.nbytes, peer),)).wait(30)
        transport.post(((Recv, Send)[transport.rank](word, 0, 1, peer, 6),)).wait(30)
        return len(transport.moved), bool((whole == message).all())

    assert World(2, rails=RAILS[:1]).run(hand_on) == [(1, True)] * 2


@pytest.mark.parametrize("rails", [(), ("memory",), ("127.0.0.2", "127.0.0.2"), ("192.0.2.1",)])
def test_rails_that_cannot_be(rails):
    for result in World(2, rails=rails).run(stream):
        assert isinstance(result, InputError), result
