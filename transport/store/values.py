"""The store's values: set, get, add, delete.

A handler, such as this one, registers the requests it answers. It lives in the store's one thread, so what it does for
one request is atomic. It answers at once by returning the reply's fields, or later by `store.reply`, and hears of every
client that is gone.
"""

from lanterne.transport.wire import MAX_KEY_NBYTES, Kind


class Refusal(Exception):
    """A request that cannot be granted; its text goes to the client."""


class KeyValues:
    """set, get (which waits for the key), add and delete."""

    def __init__(self, store):
        self._store = store
        self._values = {}
        self._waiting = {}  # key -> {connection: request_id}
        self._waits_for = {}  # connection -> key
        store.route(Kind.SET, "bb", self._set)
        store.route(Kind.GET, "b", self._get)
        store.route(Kind.ADD, "bi", self._add)
        store.route(Kind.DELETE, "b", self._delete)

    def _set(self, _connection, _request_id, key, value):
        if len(key) > MAX_KEY_NBYTES:
            raise Refusal(f"got a key of {len(key)} bytes, expected at most {MAX_KEY_NBYTES}")
        self._values[key] = value
        for connection, request_id in self._waiting.pop(key, {}).items():
            del self._waits_for[connection]
            self._store.reply(connection, request_id, [value])
        return ()

    def _get(self, connection, request_id, key):
        self._forget(connection)
        if key in self._values:
            return [self._values[key]]
        self._waiting.setdefault(key, {})[connection] = request_id
        self._waits_for[connection] = key
        return None

    def _add(self, connection, request_id, key, delta):
        try:
            total = int(self._values.get(key, b"0")) + delta
        except ValueError:
            raise Refusal(f"add to key {key.decode(errors='replace')!r}: its value is no number") from None
        if not -(2**63) <= total < 2**63:
            raise Refusal(f"add to key {key.decode(errors='replace')!r}: {total} does not fit 64 bits")
        self._set(connection, request_id, key, str(total).encode())
        return [total]

    def _delete(self, _connection, _request_id, key):
        return [int(self._values.pop(key, None) is not None)]

    def _forget(self, connection):
        # A client has one request at a time: a new one means that it has given up waiting.
        key = self._waits_for.pop(connection, None)
        if key is not None:
            del self._waiting[key][connection]
            if not self._waiting[key]:
                del self._waiting[key]

    def connection_closed(self, connection):
        self._forget(connection)
