"""The buffers and calls of a benchmarked collective on a GPU: measure.Case with device arrays, eager or captured."""

from lanterne.bench.collective.measure import ROOT, CollectiveCase


class DeviceCase(CollectiveCase):
    """As CollectiveCase, with arrays on this rank's device. A call ends when its stream has: like a CPU's, it can be timed.

    Args:
        graph: capture each algorithm's call at its first use, and launch the graph from then on.
        memory: a CudaMemory, or a stand-in.
    """

    def __init__(self, comm, collective, count, dtype, op, graph=False, memory=None):
        super().__init__(comm, collective, count, dtype, op)
        self._memory = memory or CudaMemory(comm)
        self.source, self.out = self._memory.put(self.source), self._memory.put(self.out)
        self._graph, self._captured = graph, {}

    def reset(self):
        if self.collective == "broadcast" and self.comm.rank == ROOT:
            self._memory.copy(self.out, self.source)
        else:
            self._memory.fill(self.out, 0xA5)

    def call(self, algorithm, **options):
        if self._graph and algorithm != "native":
            self._launch(algorithm, options)
        else:
            super().call(algorithm, **options)
        self._memory.synchronize()

    def result(self):
        return self._memory.get(self.out)

    def close(self):
        for captured in self._captured.values():
            captured.close()
        self._captured = {}

    def _launch(self, algorithm, options):
        key = algorithm, tuple(sorted(options.items()))
        if key not in self._captured:
            given = self.out if self.collective == "broadcast" else self.source
            options = options | self.named
            if self.collective in ("broadcast", "reduce"):
                options |= {"root": ROOT}
            if self.collective in ("all_reduce", "reduce", "reduce_scatter"):
                options |= {"op": self.op}
            self._captured[key] = self.comm.capture(self.collective, given, self.out, algorithm=algorithm, **options)
        self._captured[key].launch()


class CudaMemory:
    """CuPy's arrays on this rank's device; work is ordered on the current stream."""

    def __init__(self, comm):
        import cupy

        from lanterne.kernels.cuda.runtime import own_device

        self._cupy = cupy
        if comm.transport.runtime is None:
            own_device(comm.rank)

    def put(self, array):
        return self._cupy.asarray(array)

    def fill(self, array, byte):
        array.view(self._cupy.uint8).fill(byte)

    def copy(self, out, array):
        self._cupy.copyto(out, array)

    def get(self, array):
        return array.get()

    def synchronize(self):
        self._cupy.cuda.get_current_stream().synchronize()
