"""Stores of several hosts, each in a thread here: what they say to each other, and to ranks meanwhile."""

import threading
from contextlib import suppress

import pytest

from lanterne.errors import TransportError
from lanterne.transport.machine import THIS_MACHINE
from lanterne.transport.store.client import StoreClient
from lanterne.transport.store.connection import StoreLost
from lanterne.transport.store.server import Store
from lanterne.transport.wire import Kind, pack_frame, pack_ranks

TOKEN = "0123456789abcdef"


def name_of(listener):
    return f"127.0.0.1:{listener.getsockname()[1]}"


class Stores:
    """Of `count` hosts, the first one's leads."""

    def __init__(self, count):
        listeners = [THIS_MACHINE.listen("127.0.0.1") for _ in range(count)]
        self.names = [*map(name_of, listeners)]
        self.stores = [Store(each, TOKEN, stands_by=index > 0) for index, each in enumerate(listeners)]
        self.threads = [threading.Thread(target=store.run, daemon=True) for store in self.stores]
        for thread in self.threads:
            thread.start()

    def client(self, index):
        host, _, port = self.names[index].partition(":")
        return StoreClient((host, int(port)), TOKEN, 10.0)

    def end(self, index):
        self.stores[index].stop()
        with suppress(TransportError):
            self.client(index).close()  # It sleeps until somebody comes.
        self.threads[index].join()


def told(client):
    """Why the store does not serve it any more, once it says so."""
    assert THIS_MACHINE.readable([client], 10.0)
    with pytest.raises(StoreLost) as lost:
        client.pump()
    return str(lost.value).rpartition("connection lost: ")[2]


@pytest.fixture
def stores():
    made = []

    def make(count):
        made.append(Stores(count))
        return made[-1]

    yield make
    for each in made:
        for index, thread in enumerate(each.threads):
            if thread.is_alive():
                each.end(index)


def test_a_store_that_reaches_nobody_any_more_counts_itself_only(stores):
    """It asks all, also once those that answer can be no majority any more."""
    job = stores(7)
    rank, other = job.client(0), job.client(0)
    for client, number in ((rank, 0), (other, 1)):
        client.call(Kind.JOIN, [number, 2], 10.0)
    fields = [field for index, name in enumerate(job.names) for field in (name.encode(), pack_ranks([index]))]
    rank.call(Kind.ELECTORS, fields, 10.0)
    for index in range(1, 7):
        job.end(index)
    other.close()
    assert told(rank) == "it reaches 1 of 7 hosts of the job, no majority"


def test_a_store_that_asks_whether_it_may_lead_serves_meanwhile(stores):
    """Of three hosts two have fallen silent. Ranks that come wait for what comes of it, all others are answered."""
    job = stores(2)
    silent = [THIS_MACHINE.listen("127.0.0.1") for _ in range(2)]
    names = job.names[1], *map(name_of, silent)
    leads, other, *ranks = (job.client(1) for _ in range(4))
    electors = pack_frame(Kind.ELECTORS, 0, [field for name in names for field in (name.encode(), b"")])
    log = electors, "\n".join(names).encode()
    assert leads.call(Kind.WRITE, [names[0].encode(), 0, names[1].encode(), 1, 0, *log], 10.0) == [1]
    for rank in ranks:
        rank.tell(Kind.RETURN, [0, 1, 0, b"", b""], 10.0)
    assert other.call(Kind.REFUSED, (), 10.0) == [0, b""]
    assert not any(rank.pump() for rank in ranks)
    assert {*map(told, ranks)} == {"1 of 3 hosts of the job follow it, no majority"}
    for listener in silent:
        listener.close()
