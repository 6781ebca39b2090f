"""Ranks of the nccl transport as threads, on stand-ins for NCCL, streams and device memory."""

import threading
from types import SimpleNamespace

from host_nccl import HostNccl
from host_nccl4py import HostBindings, HostCore
from host_runtime import HostArray, HostRuntime

from lanterne.transport.local import LocalWorld
from lanterne.transport.nccl.nccl4py import Nccl4py
from lanterne.transport.nccl.over_nccl import NcclTransport

__all__ = ["HostArray", "HostNccl", "HostRuntime", "Job"]


class Job:
    """`world_size` ranks, a device each; `run(function)` calls function(transport) on all and returns what they return.

    What a rank raises is returned in its place; that it ended, only once its transport is closed.
    """

    # Which of NCCL's bindings stands between: a test takes turns.
    binding = "cupy"

    def __init__(self, world_size, timeout_s=20.0, nccl=None, devices=None, version=None):
        self.world_size, self.timeout_s = world_size, timeout_s
        self.nccl = nccl or HostNccl()
        self.libraries = [self.library(self.nccl)] * world_size
        self.world = LocalWorld(world_size)
        self.runtimes = [self.nccl.adopt(HostRuntime(device)) for device in devices or range(world_size)]

    def library(self, nccl):
        """The binding over `nccl`."""
        if self.binding == "cupy":
            return nccl
        return Nccl4py(HostCore(nccl), HostBindings(nccl))

    def transport(self, rank):
        group = SimpleNamespace(rank=rank, world_size=self.world_size, host="host", hosts=("host",) * self.world_size)
        host = self.world.transport(rank, self.timeout_s)
        # Its watch may listen there, as over UCX.
        host.background_s = 0.05
        return NcclTransport(
            group, self.timeout_s, host=host, runtime=self.runtimes[rank], library=self.libraries[rank]
        )

    def run(self, function, close=True):
        results = ["did not end"] * self.world_size

        def rank_main(rank):
            transport = None
            try:
                transport = self.transport(rank)
                result = function(transport)
            except Exception as error:
                result = error
            finally:
                if transport is not None and close:
                    transport.close()
            results[rank] = result

        threads = [threading.Thread(target=rank_main, args=(rank,), daemon=True) for rank in range(self.world_size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
        for runtime in self.runtimes:
            runtime.close()
        return results
