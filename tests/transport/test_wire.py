import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanterne.errors import InputError
from lanterne.transport import wire

KEY = wire.check_token("a token of the job")
FIELDS = st.lists(st.integers(-(2**63), 2**63 - 1) | st.binary(max_size=300), max_size=6)


def types_of(fields):
    return "".join("i" if isinstance(field, int) else "b" for field in fields)


@given(FIELDS, st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1))
def test_a_frame_comes_back(fields, kind, request_id):
    buffer = bytearray(wire.pack_frame(kind, request_id, fields) + b"next")
    got_kind, got_id, body = wire.take_frame(buffer)
    assert (got_kind, got_id, wire.unpack_fields(body, types_of(fields))) == (kind, request_id, fields)
    assert buffer == b"next"


@given(st.lists(FIELDS, min_size=1, max_size=4), st.data())
def test_frames_survive_any_segmentation(messages, data):
    stream = b"".join(wire.pack_frame(1, number, fields) for number, fields in enumerate(messages))
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(stream) - 1)))))
    buffer, taken = bytearray(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        buffer += stream[start:end]
        while frame := wire.take_frame(buffer):
            taken.append(wire.unpack_fields(frame[2], types_of(messages[frame[1]])))
    assert taken == messages
    assert not buffer


@given(FIELDS, st.data())
def test_a_body_that_is_too_short_or_too_long_is_refused(fields, data):
    body = wire.pack_frame(1, 0, fields)[wire.HEADER.size :]
    with pytest.raises(wire.WireError):
        wire.unpack_fields(body + b"x", types_of(fields))
    if body:
        with pytest.raises(wire.WireError):
            wire.unpack_fields(body[: data.draw(st.integers(0, len(body) - 1))], types_of(fields))


@given(st.binary(max_size=100), st.sampled_from(["", "i", "b", "bb", "iib", "b*", "i*"]))
def test_garbage_is_refused_or_parsed_but_nothing_else(body, types):
    try:
        fields = wire.unpack_fields(body, types)
    except wire.WireError:
        return
    assert wire.pack_frame(0, 0, fields)[wire.HEADER.size :] == body


def test_repeated_fields():
    for fields in ([], [b"a"], [b"", b"b", b"ccc"]):
        body = wire.pack_frame(1, 0, fields)[wire.HEADER.size :]
        assert wire.unpack_fields(body, "b*") == fields, fields


def test_sizes_are_bounded():
    with pytest.raises(InputError, match="expected at most"):
        wire.pack_frame(1, 0, [bytes(wire.MAX_BODY_NBYTES)])
    with pytest.raises(wire.WireError, match="expected at most"):
        wire.take_frame(bytearray(wire.HEADER.pack(wire.MAX_BODY_NBYTES + 1, 1, 0)))


def test_handshake_convinces_both_sides():
    challenge, nonce = wire.make_challenge()
    answer, expected, _ = wire.answer_challenge(KEY, challenge)
    assert (len(challenge), len(answer)) == (wire.CHALLENGE_NBYTES, wire.ANSWER_NBYTES)
    assert wire.judge_answer(KEY, nonce, answer) == (expected, None)
    assert expected.startswith(wire.ACCEPTED)
    assert len(expected) == wire.VERDICT_NBYTES


@given(st.integers(0, wire.ANSWER_NBYTES - 1), st.integers(1, 255))
def test_an_altered_answer_is_refused(position, flip):
    challenge, nonce = wire.make_challenge()
    answer = bytearray(wire.answer_challenge(KEY, challenge)[0])
    answer[position] ^= flip
    assert wire.judge_answer(KEY, nonce, bytes(answer))[0].startswith(wire.REFUSED)


def test_an_answer_serves_once_and_for_one_token():
    challenge, nonce = wire.make_challenge()
    answer, expected, _ = wire.answer_challenge(KEY, challenge)
    other = wire.check_token("another job's token")
    assert wire.judge_answer(KEY, wire.make_challenge()[1], answer)[0].startswith(wire.REFUSED)
    assert wire.judge_answer(other, nonce, answer)[0].startswith(wire.REFUSED)
    # A store that does not know the token, or one that sends the client's own proof back, convinces nobody.
    assert wire.ACCEPTED + answer[wire.CHALLENGE_NBYTES :] != expected


def test_short_tokens_are_refused():
    with pytest.raises(InputError, match="got 15 characters, expected 16 or more"):
        wire.check_token("x" * 15)
