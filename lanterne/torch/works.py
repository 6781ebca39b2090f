"""The Work that a call of torch.distributed returns, over requests of lanterne."""

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch

from lanterne.errors import LanterneError
from lanterne.torch.torch_internals import (
    Untraced,
    Work,
    as_torch,
    is_settling,
    make_future,
    seconds,
    torch_errors,
)
from lanterne.transport.machine import THIS_MACHINE


class Started(Protocol):
    """Methods of a request that a Work needs; see CollectiveRequest."""

    def test(self) -> bool: ...
    def wait(self, timeout_s: float | None = None) -> None: ...
    def then(self, callback: Callable[[], object], timeout_s: float | None = None) -> None: ...


class RequestWork(Untraced, Work):
    """Work that completes once all `requests` are complete and `finish` has run.

    Args:
        limit_s: default timeout of `wait`.
        result: tensors that `get_future` and `result` return.
        finish: called once, when the requests are complete.
        source: returns the rank that sent a message, once that is known.
    """

    def __init__(
        self,
        requests: Sequence[Started],
        limit_s: float,
        result: Sequence[torch.Tensor] = (),
        finish: Callable[[], object] | None = None,
        source: Callable[[], int] | None = None,
    ) -> None:
        super().__init__()
        self._requests = tuple(requests)
        self._limit_s = limit_s
        self._result = result
        self._finish = finish
        self._source = source
        self._lock = threading.Lock()
        self._error: LanterneError | None = None
        self._future: Any = None
        self._over = False

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return True once the call is complete; raise DistBackendError or ValueError if it failed."""
        if not self._over:
            limit_s = seconds(timeout)
            self._wait(self._limit_s if limit_s is None else limit_s)
        if self._error is not None:
            raise as_torch(self._error) from self._error
        return True

    def _wait(self, limit_s: float) -> None:
        until_s = THIS_MACHINE.now_s() + limit_s
        try:
            for request in self._requests:
                request.wait(max(0.0, until_s - THIS_MACHINE.now_s()))
        except LanterneError as error:
            self._end(error)
        else:
            self._end()

    def _end(self, error: LanterneError | None = None) -> None:
        with self._lock:
            if self._over:
                return
            self._error = error
            if error is None and self._finish is not None:
                self._finish()
            self._finish, self._over = None, True

    def is_completed(self) -> bool:
        """Return whether the call has ended, successfully or not."""
        if not self._over:
            try:
                if all([request.test() for request in self._requests]):
                    self._end()
            except LanterneError as error:
                self._end(error)
        return self._over

    def is_success(self) -> bool:
        """Return whether the call has ended successfully."""
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        """Return the error of the call, or None."""
        self.is_completed()
        return None if self._error is None else as_torch(self._error)

    def synchronize(self) -> None:
        """Do as `wait`."""
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """Return the tensors that were written."""
        return list(self._result)

    def source_rank(self) -> int:
        """Return the rank that sent the message."""
        with torch_errors():
            return -1 if self._source is None else self._source()

    _source_rank = source_rank

    def get_future(self) -> Any:
        """Return a future of `result`; the thread that sees the end completes it."""
        if self._future is None:
            if is_settling():
                # This thread runs a callback of another call, and would wait for itself.
                self._wait(self._limit_s)
            self._future, complete = make_future(self._outcome)
            self._follow(0, complete)
        return self._future

    def _follow(self, index: int, complete: Callable[[], None]) -> None:
        """Call `complete` once the requests from `index` on have ended."""
        if self._over or index == len(self._requests):
            complete()
        else:
            self._requests[index].then(lambda: self._follow(index + 1, complete), self._limit_s)

    def _outcome(self) -> Sequence[torch.Tensor]:
        self.wait()
        return self._result
