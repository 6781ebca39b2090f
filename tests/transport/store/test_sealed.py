"""What clients and store say to each other between hosts: whoever is on the path can end it, and change nothing."""

import socket
import threading
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanterne.errors import TransportError
from lanterne.transport import wire
from lanterne.transport.store import client as client_module
from lanterne.transport.store.client import StoreClient
from lanterne.transport.store.connection import StoreLost
from lanterne.transport.store.process import StoreProcess

TOKEN = "a token of a test, and no other"
KEY = TOKEN.encode()


@pytest.fixture(scope="module")
def store():
    with StoreProcess(TOKEN) as process:
        yield process


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch):
    """As if the store were on another host."""
    monkeypatch.setattr(client_module, "is_loopback", lambda host: False)


class Path:
    """Between a client and the store: `change(count, data)` is what becomes of the data that come for the store.

    `count`: bytes that have passed before.
    """

    def __init__(self, address, change):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()[:2]
        self.there = socket.create_connection(address)
        self.change = change
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        here, _ = self.listener.accept()
        threading.Thread(target=self._pass, args=(self.there, here, lambda count, data: data), daemon=True).start()
        self._pass(here, self.there, self.change)

    def _pass(self, source, target, change):
        count = 0
        with suppress(OSError):  # Either end hangs up when it likes.
            while data := source.recv(1 << 16):
                target.sendall(change(count, data))
                count += len(data)
            target.shutdown(socket.SHUT_WR)

    def close(self):
        self.listener.close()
        self.there.close()


def test_all_goes_through_sealed_and_unsealed_beside_each_other(store, monkeypatch):
    sealed = StoreClient(store.address, TOKEN, 20)
    monkeypatch.setattr(client_module, "is_loopback", lambda host: True)
    plain = StoreClient(store.address, TOKEN, 20)
    sealed.set("a", b"1" * 1_000_000)
    assert plain.get("a") == b"1" * 1_000_000
    assert [sealed.add("n"), plain.add("n"), sealed.add("n")] == [1, 2, 3]
    assert sealed.get("a") == b"1" * 1_000_000


@pytest.mark.parametrize("change", ["flip", "repeat", "leave out"])
def test_what_is_changed_on_the_way_is_not_believed(store, change):
    after = wire.ANSWER_NBYTES

    def changed(count, data):
        if count < after:
            return data
        if change == "flip":
            return data[:-20] + bytes((data[-20] ^ 1,)) + data[-19:]
        return data * 2 if change == "repeat" else b""

    path = Path(store.address, changed)
    try:
        client = StoreClient(path.address, TOKEN, 20)
        if change == "repeat":  # The first of two comes as it was said.
            client.add("of one", 1)
        with pytest.raises(TransportError):
            client.add("of one", 1, 0.5)
    finally:
        path.close()
    assert StoreClient(store.address, TOKEN, 20).add("of one", 0) == (change == "repeat")
    StoreClient(store.address, TOKEN, 20).delete("of one")


def test_a_store_whose_answer_was_changed_is_lost(monkeypatch, store):
    client = StoreClient(store.address, TOKEN, 20)
    client.connection.seals.into.of_frame(b"one that never came")
    with pytest.raises(StoreLost, match="it was changed, added, repeated or moved on its way"):
        client.get("a", 5)


def test_who_is_on_the_path_cannot_turn_seals_off():
    """Whether frames are sealed is part of what the client proves."""
    challenge, nonce = wire.make_challenge()
    answers = {sealed: wire.answer_challenge(KEY, challenge, sealed=sealed) for sealed in (False, True)}
    for sealed, (answer, verdict, seals) in answers.items():
        judged, theirs = wire.judge_answer(KEY, nonce, answer)
        assert judged == verdict and (seals is not None) == (theirs is not None) == sealed, (
            sealed,
            answer,
            verdict,
            seals,
        )
    mixed = answers[True][0][: wire.CHALLENGE_NBYTES] + answers[False][0][wire.CHALLENGE_NBYTES :]
    assert wire.judge_answer(KEY, nonce, mixed)[0].startswith(wire.REFUSED)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=5), st.data())
def test_any_change_of_any_byte_is_found(bodies, data):
    challenge, nonce = wire.make_challenge()
    answer, _, mine = wire.answer_challenge(KEY, challenge, sealed=True)
    _, theirs = wire.judge_answer(KEY, nonce, answer)
    said = bytearray()
    for body in bodies:
        frame = wire.pack_frame(wire.Kind.SET, 1, [body])
        said += frame + mine.out.of_frame(frame)
    at = data.draw(st.integers(0, len(said) - 1))
    said[at] ^= 1 << data.draw(st.integers(0, 7))
    heard = []
    try:
        while frame := wire.take_frame(said, theirs):
            heard.append(wire.unpack_fields(frame[2], "b")[0])
    except wire.WireError:
        pass
    assert len(heard) < len(bodies) and heard == bodies[: len(heard)]
