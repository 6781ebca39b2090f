"""Starts the store in a process of its own."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from lanterne import __file__ as front_door
from lanterne.errors import Unavailable
from lanterne.transport import wire
from lanterne.transport.machine import THIS_MACHINE
from lanterne.transport.own_python import own_python
from lanterne.transport.steering import steers, value


@steers
@dataclass(frozen=True)
class StoreProcessPolicy:
    """How long a store may take to start."""

    start_s: float = value(
        30.0,
        "a Python start on a busy machine",
        half="starts fail under load",
        double="a store that hangs is told after a minute",
    )


POLICY = StoreProcessPolicy()


class StoreProcess:
    """A store of our own in another process.

    It ends with us if `until` is "owner", else after its last client: then our own death can still be told to the
    others. One that `stands_by` is another store's heir (heirs.py); whoever starts it calls `listens` later.

    Attributes: `address` (host, port); `term`, how often it was renewed.

    Raises:
        Unavailable: `bind` and `port` cannot be listened on.
    """

    def __init__(
        self, token: str, bind: str = "127.0.0.1", port: int = 0, until: str = "owner", *, stands_by: bool = False
    ) -> None:
        wire.check_token(token)
        self._token = token
        self._until = until
        self._stands_by = stands_by
        self.term: int = 0
        self.address: tuple[str, int] = bind, port
        self._start()
        if not stands_by:
            self.listens()

    def renew(self) -> None:
        """Start another at the same address, which knows nothing yet, in place of one that has ended or hangs."""
        self._process.kill()
        self._process.wait()
        self.close()
        self.term += 1
        self._start()
        self.listens()

    def wait(self) -> int:
        """Return how the store has ended, once it has: its exit code, -n of signal n."""
        return self._process.wait()

    def _start(self) -> None:
        bind, port = self.address
        command = [*own_python(), "-m", "lanterne.transport.store.server", "--term", str(self.term)]
        command += ["--bind", bind, "--port", str(port), "--until", self._until, *["--stands-by"] * self._stands_by]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A launcher that reads our output to its end would wait for a store that outlives us.
            stderr=None if self._until == "owner" else subprocess.DEVNULL,
            env=os.environ | {"LANTERNE_TOKEN": self._token},
            cwd=Path(front_door).parents[1],
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._owns, self._says = self._process.stdin, self._process.stdout

    def listens(self) -> None:
        """Return once it does. Raises Unavailable."""
        bind, port = self.address
        said = self._first_line()
        if not said.isdigit():
            self.close()
            raise Unavailable(f"store: cannot listen on {bind} port {port}: {said or 'it ended at once'}")
        self.address = bind, int(said)

    def _first_line(self) -> str:
        if not THIS_MACHINE.readable([self._says], POLICY.start_s):
            return f"no answer within {POLICY.start_s:g} s"
        return self._says.readline().decode(errors="replace").removeprefix("error ").strip()

    @property
    def pid(self) -> int:
        """Of the store's process."""
        return self._process.pid

    def close(self) -> None:
        """End the store, or with `until` = "members" leave it to them; a second call does nothing."""
        if self._until == "owner" and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        self._owns.close()
        self._says.close()
        self._process.returncode = self._process.returncode or 0  # nothing here waits for it any more

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
