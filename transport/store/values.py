"""The store's values: set, get, add, delete."""

from lanterne.transport.store.handler import Answer, Connection, Refusal, Service
from lanterne.transport.wire import MAX_KEY_NBYTES, Kind

# A number that is added to begins here in the store's second term, and so on: what the first has given is not again.
OF_A_TERM = 1 << 12


class KeyValues:
    """set, get (which waits for the key), add and delete."""

    def __init__(self, store: Service) -> None:
        self._store = store
        self._values: dict[bytes, bytes] = {}
        self._waiting: dict[bytes, dict[Connection, int]] = {}  # request ids by key
        self._waits_for: dict[Connection, bytes] = {}
        store.route(Kind.SET, "bb", self._set)
        store.route(Kind.GET, "b", self._get)
        store.route(Kind.ADD, "bi", self._add)
        store.route(Kind.DELETE, "b", self._delete)

    def _set(self, _connection: Connection, _request_id: int, key: bytes, value: bytes) -> Answer:
        if len(key) > MAX_KEY_NBYTES:
            raise Refusal(f"got a key of {len(key)} bytes, expected at most {MAX_KEY_NBYTES}")
        self._values[key] = value
        for connection, request_id in self._waiting.pop(key, {}).items():
            del self._waits_for[connection]
            self._store.reply(connection, request_id, [value])
        return ()

    def _get(self, connection: Connection, request_id: int, key: bytes) -> Answer:
        self._forget(connection)
        if key in self._values:
            return [self._values[key]]
        self._waiting.setdefault(key, {})[connection] = request_id
        self._waits_for[connection] = key
        return None

    def _add(self, connection: Connection, request_id: int, key: bytes, delta: int) -> Answer:
        try:
            total = int(self._values.get(key, self._store.term * OF_A_TERM)) + delta
        except ValueError:
            raise Refusal(f"add to key {key.decode(errors='replace')!r}: its value is no number") from None
        if not -(2**63) <= total < 2**63:
            raise Refusal(f"add to key {key.decode(errors='replace')!r}: {total} does not fit 64 bits")
        self._set(connection, request_id, key, str(total).encode())
        return [total]

    def _delete(self, _connection: Connection, _request_id: int, key: bytes) -> Answer:
        return [int(self._values.pop(key, None) is not None)]

    def _forget(self, connection: Connection) -> None:
        # A client has one request at a time: a new one means that it has given up waiting.
        key = self._waits_for.pop(connection, None)
        if key is not None:
            del self._waiting[key][connection]
            if not self._waiting[key]:
                del self._waiting[key]

    def connection_closed(self, connection: Connection) -> None:
        """The client is gone: it waits for nothing any more."""
        self._forget(connection)
