"""Rails: who connects is proven, strangers are refused."""

import os
import socket
import threading
from contextlib import suppress

import pytest

from lanterne.errors import InputError, PeerFailed, TransportError
from lanterne.transport.door import Door
from lanterne.transport.rails import rail as rails
from lanterne.transport.rails.delegate_transport import MAX_QUEUES, queues_needed
from lanterne.transport.rails.rail import GREETING, MEMORY, Greeting, Meeting

TOKEN = "a token of sixteen"


@pytest.mark.parametrize("address", [MEMORY, "127.0.0.1", "::1"])
def test_who_connects_is_proven(address):
    try:
        listener, where = rails.listen(address)
    except OSError as error:
        pytest.skip(f"no address {address} here: {error}")
    door, guests = Door([listener], TOKEN, greeting=GREETING), []

    def serve():
        while not guests:
            guests.extend(door.look(5))

    thread = threading.Thread(target=serve)
    thread.start()
    with pytest.raises(TransportError, match="does not know the job's token"):
        rails.connect(where, address, TOKEN + "!", Greeting(1, 1), 5)
    family = socket.AF_UNIX if address == MEMORY else listener.family
    for said in (b"x" * 200, b"x", b""):
        mute = socket.socket(family)
        mute.connect(where[0].encode("latin-1") if address == MEMORY else tuple(where))
        mute.sendall(said)
        mute.close()
    sock, seals = rails.connect(where, address, TOKEN, Greeting(3, 1), 5)
    thread.join(20)
    assert seals is None  # on one host
    assert [greeting for _, greeting, _ in guests] == [(3, 1, 0)]
    door.close()
    assert door.refused == {"wrong secret": 2, "hung up": 2}
    for end in (sock, guests[0][0], listener):
        end.close()


def test_between_hosts_rails_are_sealed_unless_the_network_is_trusted(monkeypatch):
    monkeypatch.setattr(rails, "is_loopback", lambda host: False)
    for trusted, seals in (("0", True), ("1", True), ("0", False)):
        monkeypatch.setenv("LANTERNE_TRUSTED_NETWORK", trusted)
        listeners, wheres = zip(*(rails.listen("127.0.0.1") for _ in range(2)), strict=True)
        found = {}

        def meet(rank, listeners=listeners, wheres=wheres, found=found, seals=seals):
            addresses = {1 - rank: [wheres[1 - rank]]}
            join = rails.join(Meeting([listeners[rank]], ["127.0.0.1"], addresses, rank, TOKEN), 30, seals=seals)
            found[rank] = join[1 - rank, 0]

        ranks = [threading.Thread(target=meet, args=(rank,)) for rank in range(2)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(40)
        (one, mine), (other, theirs) = found[0], found[1]
        assert (mine is not None) == (theirs is not None) == (seals and trusted == "0"), (trusted, seals)
        if mine:
            assert mine.out.of_frame(b"x") == theirs.into.of_frame(b"x") != mine.into.of_frame(b"x"), (trusted, seals)
        for sock in (*listeners, one, other):
            sock.close()


def strangers(where, how, num):
    """`num` connections to a listener at `where` that know no token; a list of sockets."""
    told = {"silent": b"", "half": b"lanterne", "garbage": os.urandom(72), "long": b"\xff" * 4096, "drip": b"l"}[how]
    opened = []
    for _ in range(num):
        sock = socket.create_connection(where, 5)
        with suppress(OSError):
            sock.sendall(told)
        opened.append(sock)
    return opened


@pytest.mark.parametrize("how", ["silent", "half", "garbage", "long", "drip"])
def test_strangers_keep_nobody_from_joining(how):
    """200 of them at each listener, before and while three ranks meet; those that drip go on doing so."""
    listeners, wheres = zip(*(rails.listen("127.0.0.1") for _ in range(3)), strict=True)
    opened = [sock for where in wheres for sock in strangers(tuple(where), how, 200)]
    stopped = threading.Event()

    def go_on():
        while not stopped.wait(0.02):
            for sock in opened if how == "drip" else ():
                with suppress(OSError):
                    sock.send(b"l")
            with suppress(OSError):
                opened.extend(strangers(tuple(wheres[2]), how, 1))

    busy = threading.Thread(target=go_on)
    busy.start()
    found = {}

    def meet(rank):
        addresses = {peer: [where] for peer, where in enumerate(wheres) if peer != rank}
        found[rank] = rails.join(Meeting([listeners[rank]], ["127.0.0.1"], addresses, rank, TOKEN), 30)

    ranks = [threading.Thread(target=meet, args=(rank,)) for rank in range(3)]
    try:
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(60)
    finally:
        stopped.set()
        busy.join(10)
    assert {rank: sorted(met) for rank, met in found.items()} == {
        rank: [(peer, 0) for peer in range(3) if peer != rank] for rank in range(3)
    }
    for rank, peer in ((0, 1), (1, 2), (2, 0)):
        found[rank][peer, 0].sock.sendall(b"%d" % rank)
        assert found[peer][rank, 0].sock.recv(1) == b"%d" % rank, (rank, peer)
    for sock in (*opened, *listeners, *(proven.sock for met in found.values() for proven in met.values())):
        sock.close()


def test_who_does_not_come_is_named_and_who_was_refused_counted():
    listener, where = rails.listen("127.0.0.1")
    opened = strangers(tuple(where), "garbage", 3)
    with pytest.raises(TransportError, match=r"rank 0 did not connect within 1 s; refused were wrong secret 3"):
        rails.join(Meeting([listener], ["127.0.0.1"], {0: [where]}, 1, TOKEN), 1)
    for sock in (*opened, listener):
        sock.close()


def test_nobody_listens():
    listener, where = rails.listen("127.0.0.1")
    listener.close()
    with pytest.raises(TransportError, match=f"cannot connect to 127.0.0.1:{where[1]}: Connection refused"):
        rails.connect(where, "127.0.0.1", TOKEN, Greeting(0, 0), 5)


def test_deaths_are_heard_of_while_a_peer_says_nothing():
    """Its kernel takes the connection; the peer itself is stopped."""
    listener, where = rails.listen("127.0.0.1")

    def check_dead(_ranks):
        raise PeerFailed(2, "it did not come")

    with pytest.raises(PeerFailed, match="rank 2"):
        rails.join(Meeting([], ["127.0.0.1"], {2: [where]}, 1, TOKEN), 60, check_dead=check_dead)
    with pytest.raises(TransportError, match=f"cannot connect to 127.0.0.1:{where[1]}: timed out"):
        rails.connect(where, "127.0.0.1", TOKEN, Greeting(0, 0), 0.1)
    listener.close()


@pytest.mark.parametrize(
    ("produced", "carried", "queues"),
    [(8, 2, 4), (0, 1, 1), (1, 8, 1), (3, 3, 1), (3.01, 3, 2), (64, 1, 64), (0.3, 0.1, 3)],
)
def test_queues_keep_up(produced, carried, queues):
    """ADAPTRA, section 5.2: 8 activations a second over delegates that take 2 need 4 queues."""
    assert queues_needed(produced, carried) == queues


@pytest.mark.parametrize(("produced", "carried"), [(1, 0), (-1, 1), (float("nan"), 1), (MAX_QUEUES + 1, 1)])
def test_rates_refused(produced, carried):
    with pytest.raises(InputError, match="queues: got"):
        queues_needed(produced, carried)
