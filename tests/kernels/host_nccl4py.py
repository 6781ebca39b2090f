"""A stand-in for nccl4py's modules nccl.core and nccl.bindings.nccl, over that for NCCL: nothing in it blocks.

As nccl4py's: what waits for other ranks goes on by itself, and the communicator says that it is in progress; an abort
ends it. Nothing may be asked of a communicator that was aborted or destroyed, and nothing be given to one in progress.
"""

import threading
from types import SimpleNamespace

from host_nccl import HostCommunicator, NcclError

SUCCESS, REMOTE_ERROR, IN_PROGRESS = 0, 6, 7


class HostCore:
    """nccl.core over a HostNccl. Attributes: `log`, what was done to communicators."""

    def __init__(self, nccl):
        self.nccl, self.log = nccl, []
        self.Communicator = _Makers(self)
        # By the id of a communicator that grows, that of what it grows to.
        self.growths = {}
        self.UniqueId = SimpleNamespace(from_bytes=bytes)
        self.CommShrinkFlag = SimpleNamespace(DEFAULT=0, ABORT=1)
        self.NCCLConfig = SimpleNamespace

    def get_unique_id(self):
        return self.nccl.get_unique_id()

    def get_error_string(self, state):
        return {REMOTE_ERROR: "remote process exited or there was a network error"}[state]


class _Makers:
    """The class nccl.core.Communicator; what it makes without a word is no communicator, and may come into one."""

    def __init__(self, core):
        self._core = core

    def init(self, world_size, rank, unique_id, config):
        assert config.blocking is False
        return HostMade(self._core, unique_id, world_size, rank)

    def __call__(self):
        return self

    def grow(self, world_size, unique_id, rank, config):
        assert config.blocking is False and unique_id and rank is not None
        self._core.log.append(("come in", rank))
        return HostMade(self._core, unique_id, world_size, rank)


class HostMade:
    """A communicator of nccl.core; one that a `parent` is shrunk to is that one's work."""

    def __init__(self, core, unique_id, world_size, rank, parent=None):
        self.core, self.unique_id, self.world_size, self.rank = core, unique_id, world_size, rank
        self.parent = parent
        MADE[id(self)] = self
        self.communicator, self.error, self.gone, self.revoked = None, None, False, False
        self._busy = []
        self.begin(self._meet)

    def _meet(self):
        unique_id = self.unique_id() if callable(self.unique_id) else self.unique_id
        self.unique_id = unique_id
        self.communicator = HostCommunicator(self.core.nccl, self.world_size, unique_id, self.rank)

    def begin(self, function):
        """Have `function` done without holding up the caller."""
        assert not self.gone and not self.in_progress, "given work while in progress"

        def run():
            try:
                function()
            except NcclError as error:
                self.error = None if self.revoked else error

        thread = threading.Thread(target=run, daemon=True)
        self._busy = [thread]
        thread.start()

    @property
    def ptr(self):
        """What bindings know it by; 0 while it is being made of another."""
        return 0 if self.parent is not None and self.in_progress else id(self)

    @property
    def in_progress(self):
        return any(thread.is_alive() for thread in self._busy)

    def get_async_error(self):
        assert not self.gone, "asked about what is freed"
        if (self.communicator is not None and self.communicator.error) or self.error:
            return REMOTE_ERROR
        return IN_PROGRESS if self.in_progress else SUCCESS

    def get_last_error(self):
        return str(self.error or self.communicator.error or "")

    def _end(self, name):
        self.core.log.append((name, self.rank))
        if self.communicator is not None:
            # Of the stand-in below: it frees the streams.
            self.communicator.abort()

    def revoke(self):
        # What it ends is no error of its own.
        self.error, self.revoked = None, True
        self._end("revoke")
        if self.communicator is not None:
            self.communicator.error = None

    def shrink(self, absent, config, flag):
        assert config.blocking is False and flag == self.core.CommShrinkFlag.ABORT
        assert self.rank not in absent
        self.core.log.append(("shrink", self.rank))
        left = [rank for rank in range(self.world_size) if rank not in absent]
        unique_id = bytes(byte ^ 0x5A for byte in self.unique_id[:120]) + bytes(8 * [1 + sum(absent)])
        made = HostMade(self.core, unique_id, len(left), left.index(self.rank), self)
        self._busy = made._busy
        return made

    def get_unique_id(self):
        return self.core.nccl.get_unique_id()

    def grow(self, world_size, unique_id, rank, config):
        assert config.blocking is False and rank is None and not self.revoked and world_size > self.world_size
        self.core.log.append(("grow", self.rank))
        growths, condition = self.core.growths, self.core.nccl.condition
        if unique_id is not None:
            with condition:
                growths[self.unique_id] = unique_id
                condition.notify_all()

        def told():
            with condition:
                while self.unique_id not in growths:
                    condition.wait()
                return growths[self.unique_id]

        made = HostMade(self.core, told, world_size, self.rank, self)
        self._busy = made._busy
        return made

    def abort(self):
        assert not self.gone
        self._end("abort")
        self.gone = True

    def finalize(self):
        assert not self.in_progress

    def destroy(self):
        self.core.log.append(("destroy", self.rank))
        self.gone = True
        self.communicator.destroy()


MADE = {}


class HostBindings:
    """nccl.bindings.nccl over a HostNccl."""

    def __init__(self, nccl):
        self._nccl, self._local = nccl, threading.local()

    def get_version(self):
        return self._nccl.get_version()

    def Comm(self, ptr):
        return MADE[ptr]

    def group_start(self):
        self._local.group = []

    def group_end(self):
        group, self._local.group = self._local.group, None
        by_made = {}
        for made, function in group:
            by_made.setdefault(made, []).append(function)

        def launch(functions):
            self._nccl.groupStart()
            for function in functions:
                function()
            self._nccl.groupEnd()

        for made, functions in by_made.items():
            made.begin(lambda functions=functions: launch(functions))

    def _give(self, made, function):
        assert not made.in_progress and not made.gone
        group = getattr(self._local, "group", None)
        if group is None:
            made.begin(function)
        else:
            group.append((made, function))

    def send(self, address, count, datatype, peer, made, stream):
        self._give(made, lambda: made.communicator.send(address, count, datatype, peer, stream))

    def recv(self, address, count, datatype, peer, made, stream):
        self._give(made, lambda: made.communicator.recv(address, count, datatype, peer, stream))

    def all_reduce(self, source, target, count, datatype, op, made, stream):
        self._give(made, lambda: made.communicator.allReduce(source, target, count, datatype, op, stream))
