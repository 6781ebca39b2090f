"""A transport around another: what all of them pass on."""

from lanterne.transport.base import Transport


class Wrapper(Transport):
    """Moves messages over `inner`, changed by whoever derives from this. Closed with it.

    Args:
        inner: a Transport.
        name: of this one.
        capabilities: None for those of `inner`.
    """

    def __init__(self, inner, name, capabilities=None):
        self.inner, self.name = inner, name
        self.rank, self.world_size = inner.rank, inner.world_size
        self.capabilities = capabilities or inner.capabilities
        self.timeout_s, self.pauses = inner.timeout_s, inner.pauses

    def open_board(self, key, rank, world_size):
        return self.inner.open_board(key, rank, world_size)

    @property
    def store(self):
        return self.inner.store

    def keep(self, thing):
        self.inner.keep(thing)

    def check_peers(self, peers):
        self.inner.check_peers(peers)

    def end_soon(self):
        self.inner.end_soon()

    def settle(self):
        self.inner.settle()

    def close(self):
        self.inner.close()
        self.closed = True
