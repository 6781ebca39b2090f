"""Calls whose output array is not contiguous: they write memory of their own, which is copied into it in the end."""

from collections.abc import Sequence

import numpy as np

from lanterne.collectives.execute.arguments import CheckedCall
from lanterne.collectives.execute.requests import CollectiveRequest
from lanterne.kernels.arrays import HostArray


def copy_back(call: CheckedCall) -> None:
    """Copy what `call`, which is complete, has written into the user's array, unless it was written there."""
    if call.back is not None:
        found: HostArray = call.out_array  # type: ignore[assignment]  # of the host, where there is `back`
        np.copyto(call.back, found)


class CopiedRequest(CollectiveRequest):
    """The request of a call whose result is to be copied: done once `wait` or `test` has done so."""

    __slots__ = ("_call", "_inner")

    def __init__(self, inner: CollectiveRequest, call: CheckedCall) -> None:
        super().__init__(inner._communicator)
        self._inner = inner
        self._call = call

    def test(self) -> bool:
        """See CollectiveRequest. Raises what the call itself raises once it is over, as one that was given up does."""
        return super().test() and self._inner.test()

    def wait(self, timeout_s: float | None = None, *, queued: bool = False) -> None:
        """See CollectiveRequest; errors as `test`."""
        super().wait(timeout_s, queued=queued)
        self._inner.test()

    def _poll(self) -> bool:
        if not self.done and (self._inner.done or self._inner._poll()):
            copy_back(self._call)
            self.done: bool = True
        return self.done

    def _pending_peers(self) -> Sequence[int]:
        return self._inner._pending_peers()

    def _expire(self, limit_s: float) -> None:
        self._inner._expire(limit_s)
