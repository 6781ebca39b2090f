"""Starts the store in a process of its own."""

import os
import select
import subprocess
from pathlib import Path

from lanterne import __file__ as front_door
from lanterne.errors import Unavailable
from lanterne.transport import wire
from lanterne.transport.own_python import own_python

START_S = 30.0


class StoreProcess:
    """A store of our own in another process.

    It ends with us if `until` is "owner", else after its last client: then our own death can still be told to the
    others.

    Attributes: `address` (host, port).

    Raises:
        Unavailable: `bind` and `port` cannot be listened on.
    """

    def __init__(self, token, bind="127.0.0.1", port=0, until="owner"):
        command = [*own_python(), "-m", "lanterne.transport.store.server"]
        command += ["--bind", bind, "--port", str(port), "--until", until]
        wire.check_token(token)
        self._until = until
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A launcher that reads our output to its end would wait for a store that outlives us.
            stderr=None if until == "owner" else subprocess.DEVNULL,
            env=os.environ | {"LANTERNE_TOKEN": token},
            cwd=Path(front_door).parents[1],
            start_new_session=True,
        )
        said = self._first_line()
        if not said.isdigit():
            self.close()
            raise Unavailable(f"store: cannot listen on {bind} port {port}: {said or 'it ended at once'}")
        self.address = (bind, int(said))

    def _first_line(self):
        if not select.select([self._process.stdout], [], [], START_S)[0]:
            return f"no answer within {START_S:g} s"
        return self._process.stdout.readline().decode(errors="replace").removeprefix("error ").strip()

    @property
    def pid(self):
        return self._process.pid

    def close(self):
        """End the store, or with `until` = "members" leave it to them; a second call does nothing."""
        if self._until == "owner" and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.returncode = self._process.returncode or 0  # nothing here waits for it any more

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()
