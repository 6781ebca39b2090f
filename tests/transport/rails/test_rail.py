"""Rails: frames whole and in order however they are cut, strangers refused."""

import os
import socket
import threading
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanterne.errors import InputError, PeerFailed, TransportError
from lanterne.transport import wire
from lanterne.transport.door import Door
from lanterne.transport.rails import rail as rails
from lanterne.transport.rails.delegate_transport import MAX_QUEUES, queues_needed
from lanterne.transport.rails.rail import DATA, GO, GREETING, MEMORY, PING, RECEIPT, Greeting, Meeting, Rail

TOKEN = "a token of sixteen"


def pair(sealed=False):
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    challenge, nonce = wire.make_challenge()
    answer, _, mine = wire.answer_challenge(TOKEN.encode(), challenge, sealed=sealed)
    theirs = wire.judge_answer(TOKEN.encode(), nonce, answer)[1]
    return Rail(ends[0], 1, 0, seals=mine), Rail(ends[1], 0, 0, seals=theirs)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.tuples(st.sampled_from([DATA, GO, RECEIPT, PING]), st.integers(0, 20_000), st.booleans()), max_size=12),
    st.booleans(),
)
def test_frames_come_whole_and_in_order(frames, sealed):
    """DATA of any size between other frames; some of it dropped, as what comes twice is."""
    giver, taker = pair(sealed)
    got, places = [], {}

    def on_frame(rail, frame, is_whole):
        kind, number, nbytes = frame[:3]
        if kind == DATA and nbytes and not is_whole:
            assert rail.taking is None
            places[number] = bytearray(nbytes)
            return memoryview(places[number]) if frames[number][2] else None
        got.append((kind, number))
        return None

    for number, (kind, nbytes, _) in enumerate(frames):
        payload = memoryview(bytes([number + 1]) * nbytes) if kind == DATA else None
        giver.put(kind, number, nbytes if kind == DATA else 0, payload=payload)
    while not giver.idle or len(got) < len(frames):
        giver.flush()
        taker.read(on_frame)
    assert got == [(kind, number) for number, (kind, _, _) in enumerate(frames)]
    for number, place in places.items():
        assert bytes(place) == bytes([number + 1 if frames[number][2] else 0]) * frames[number][1], (number, place)
    giver.close()
    with pytest.raises(EOFError, match="it was closed"):
        taker.read(on_frame)
    taker.close()


@settings(deadline=None, max_examples=50)
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=3), st.data())
def test_what_is_changed_on_the_way_is_found(payloads, data):
    """Any bit of any frame, message or seal: nothing that comes after it is whole."""
    giver, taker = pair(sealed=True)
    for number, payload in enumerate(payloads):
        giver.put(DATA, number, len(payload), payload=memoryview(payload))
    said = bytearray(b"".join(giver._out))
    at = data.draw(st.integers(0, len(said) - 1))
    said[at] ^= 1 << data.draw(st.integers(0, 7))
    places, whole = {}, []

    def on_frame(rail, frame, is_whole):
        if is_whole:
            whole.append(frame[1])
            return None
        return memoryview(places.setdefault(frame[1], bytearray(frame[2])))

    giver.sock.setblocking(True)
    giver.sock.sendall(said)
    giver.sock.shutdown(socket.SHUT_WR)
    with pytest.raises(EOFError, match="what came was changed, added, repeated or moved on its way"):
        while True:
            taker.read(on_frame)
    assert len(whole) < len(payloads)
    assert all(bytes(places.get(number, b"")) == payloads[number] for number in whole)
    giver.close()
    taker.close()


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 9000), max_size=6), st.integers(1, 3), st.booleans())
def test_a_payload_leaves_as_it_lands(steps, num_after, sealed):
    """What has not landed is never sent, what has is, and frames put meanwhile come after it."""
    giver, taker = pair(sealed)
    total = sum(steps) + 1
    payload, place, here, got = bytearray(total), bytearray(total), [0], []

    def on_frame(rail, frame, is_whole):
        if frame[0] == DATA and not is_whole:
            return memoryview(place)
        got.append(frame[:2])
        return None

    giver.put(DATA, 0, total, payload=memoryview(payload), landed=lambda: here[0])
    for number in range(1, num_after + 1):
        giver.put(GO, number)
    for step in [*steps, 1]:
        payload[here[0] : here[0] + step] = b"x" * step
        here[0] += step
        while place.count(b"x") < here[0]:
            giver.flush()
            taker.read(on_frame)
        assert place == payload, step
        assert not got or here[0] == total, step
    while not giver.idle or len(got) <= num_after:
        giver.flush()
        taker.read(on_frame)
    assert place == payload and got == [(DATA, 0), *((GO, number) for number in range(1, num_after + 1))]
    giver.close()
    taker.close()


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
