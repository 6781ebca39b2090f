"""Starts the store in a process of its own."""

import os
import subprocess
from pathlib import Path
from typing import Self

from lanterne import __file__ as front_door
from lanterne.errors import Unavailable
from lanterne.transport import wire
from lanterne.transport.machine import THIS_MACHINE
from lanterne.transport.own_python import own_python
from lanterne.transport.store.redis_lease import RedisLease

# A Python start takes a second, on a busy machine ten.
START_S = 30.0


class StoreProcess:
    """Store in another process.

    It ends with this process if `until` is "owner". Else it ends after its last client, so it can still report the
    death of this process.

    Args:
        lease: that of the job, which this process has claimed for the store.

    Attributes: `address` (host, port).

    Raises:
        Unavailable: `bind` and `port` cannot be listened on, or Redis does not answer.
    """

    def __init__(
        self,
        token: str,
        bind: str = "127.0.0.1",
        port: int = 0,
        until: str = "owner",
        lease: RedisLease | None = None,
    ) -> None:
        wire.check_token(token)
        self._until = until
        command = [*own_python(), "-m", "lanterne.transport.store.server"]
        command += ["--bind", bind, "--port", str(port), "--until", until]
        variables = {"LANTERNE_TOKEN": token}
        if lease is not None:
            command += ["--lease", lease.name]
            variables["LANTERNE_STORE"] = lease.url
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A launcher that reads our output to its end would wait for a store that outlives us.
            stderr=None if self._until == "owner" else subprocess.DEVNULL,
            env=os.environ | variables,
            cwd=Path(front_door).parents[1],
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._owns, self._says = self._process.stdin, self._process.stdout

        said = self._first_line()
        if not said.isdigit():
            self.close()
            raise Unavailable(f"store: cannot listen on {bind} port {port}: {said or 'it ended at once'}")
        self.address: tuple[str, int] = bind, int(said)

    def _first_line(self) -> str:
        if not THIS_MACHINE.readable([self._says], START_S):
            return f"no answer within {START_S:g} s"
        return self._says.readline().decode(errors="replace").removeprefix("error ").strip()

    @property
    def pid(self) -> int:
        """Return the pid of the store's process."""
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
