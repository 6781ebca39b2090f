"""Two hosts in one box: lan0 joins them, and docker0 has the same address on both. Needs root and ip."""

import os
import shutil
import subprocess
import sys
from itertools import count

from processes import PATIENCE_S, free_port

DOCKER = "172.17.0.1"
_numbers = count()


def missing():
    """Why there can be no such hosts here; empty if there can."""
    if os.geteuid() != 0 or any(shutil.which(program) is None for program in ("ip", "unshare")):
        return "network namespaces need root, ip and unshare"
    return "" if subprocess.run(["unshare", "-m", "-u", "true"], check=False).returncode == 0 else "no namespaces here"


class TwoHosts:
    """The hosts node1 and node2; a context manager.

    Args:
        lan: the prefix of their addresses on lan0, 10.50.0.1 and 10.50.0.2 say.
        names: what node1 and node2 mean on their own hosts; empty: nothing.
    """

    def __init__(self, folder, lan="10.50.0.", names=("", "")):
        self._folder = folder
        self.addresses = [f"{lan}{number}" for number in (1, 2)]
        self._names = names
        self._spaces = [f"ltn{os.getpid()}-{next(_numbers)}" for _ in range(2)]

    def __enter__(self):
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for space in self._spaces:
            subprocess.run(["ip", "netns", "del", space], stderr=subprocess.DEVNULL, check=False)

    def _make(self):
        one, two = self._spaces
        lines = [line for space in self._spaces for line in (f"netns add {space}", f"-n {space} link set lo up")]
        lines += [f"link add lan0 netns {one} type veth peer name lan0 netns {two}"]
        for space, address in zip(self._spaces, self.addresses, strict=True):
            on = f"-n {space}"
            lines += [
                f"{on} addr add {address}/64 dev lan0 nodad"
                if ":" in address
                else f"{on} addr add {address}/24 dev lan0"
            ]
            lines += [f"{on} link add docker0 type veth peer name d1", f"{on} addr add {DOCKER}/16 dev docker0"]
            lines += [f"{on} link set {device} up" for device in ("docker0", "d1", "lan0")]
        for line in lines:
            subprocess.run(["ip", *line.split()], check=True)

    def run(self, code, ranks=(0, 1), token="t" * 20, **variables):
        """By host, what `python -c code` of rank `ranks[host]` wrote, and its exit code."""
        port = str(free_port())
        started = []
        for number, (space, rank, name) in enumerate(zip(self._spaces, ranks, self._names, strict=True), start=1):
            hosts = self._folder / f"hosts{number}"
            hosts.write_text("127.0.0.1 localhost\n" + (f"{name} node{number}\n" if name else ""))
            words = f'hostname node{number}; mount --bind {hosts} /etc/hosts; exec "$@"'
            place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": self.addresses[0], "MASTER_PORT": port}
            started.append(
                subprocess.Popen(
                    [
                        *f"ip netns exec {space} unshare -m -u sh -c".split(),
                        words,
                        "sh",
                        sys.executable,
                        "-P",
                        "-c",
                        code,
                    ],
                    env=os.environ | place | {"LANTERNE_TOKEN": token, "LANTERNE_TIMEOUT_S": "20", **variables},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        try:
            return [(rank.communicate(timeout=2 * PATIENCE_S)[0], rank.returncode) for rank in started]
        finally:
            for rank in started:
                rank.kill()
