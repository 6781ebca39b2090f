"""What ranks of tests/torch expect to be refused."""


def refuses(kind, words, call):
    """Assert that `call` raises `kind` with `words` in its message."""
    try:
        call()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"nothing was raised, expected {words!r}")
