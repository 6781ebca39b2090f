"""A small cluster of network namespaces: hosts with names and addresses of their own, Slurm with munge on them.

Hosts share this machine's files and shared memory, as containers with a common IPC namespace do, but no loopback. Needs
root, ip, tc and what `./run setup cluster` installs.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from lanterne.bench.lab import network as lab
from lanterne.transport.job.launchers import VARIABLES

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "mpirun", "ip", "tc")
START_S = 30.0
SITE_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
# Reached by name through sh: what it starts is a rank on another host. Open MPI's and MPICH's words differ.
AGENT = """#!/bin/sh
while case $1 in -*) true ;; *) false ;; esac; do shift; done
host=$1; shift
exec ip netns exec "$host" unshare --uts sh -c 'hostname "$0"; exec sh -c "$*"' "$host" "$*"
"""
DAEMON = """hostname "$1"; mount -t tmpfs none /sys/fs/cgroup; exec slurmd -D"""
CONFIG = """ClusterName={name}
SlurmctldHost={first}({address})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
TmpFS={folder}/tmp-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MailProg=/bin/true
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing():
    """Why there can be no cluster here; empty if there can."""
    lacking = [program for program in PROGRAMS if shutil.which(program) is None]
    if lacking:
        return f"{', '.join(lacking)} not found: ./run setup cluster"
    return "" if os.geteuid() == 0 else "network namespaces need root"


class Cluster:
    """Two hosts, of two cores each as Slurm believes; a context manager.

    Attributes: `hosts`, their names; `folder`, which all of them see.
    """

    def __init__(self, folder):
        self.folder = Path(folder)
        self._network = lab.Network(f"ltc{os.getpid()}", (1.25e9, 1.25e9))
        self.hosts = [self._network.host(index) for index in range(2)]
        self._daemons = []

    def __enter__(self):
        try:
            lab.create(self._network)
            self._write_programs()
            self._start_slurm()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        # munged would outlive the network, since it is on no host of it.
        for daemon in self._daemons:
            daemon.terminate()
        lab.remove(self._network.name)
        for daemon in self._daemons:
            daemon.wait(30)

    def _write_programs(self):
        beside = Path(sys.executable).parent
        for name, text in {
            "python": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
            "mpich/mpiexec": f'#!/bin/sh\nexec {beside}/mpiexec "$@"\n',
            "agent": AGENT,
        }.items():
            path = self.folder / "bin" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)

    def _start_slurm(self):
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self.folder.chmod(0o755)  # munged wants its socket where anybody may reach it
        for name in ("state", *(f"{kind}-{host}" for kind in ("spool", "tmp") for host in self.hosts)):
            (self.folder / name).mkdir()
        (self.folder / "slurm.conf").write_text(
            CONFIG.format(
                name=self._network.name,
                first=self.hosts[0],
                address=self._network.address(0),
                folder=self.folder,
                nodes="\n".join(
                    f"NodeName={host} NodeAddr={self._network.address(index)} CPUs=2 State=UNKNOWN"
                    for index, host in enumerate(self.hosts)
                ),
            )
        )
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        munged = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.folder}/munge.socket"]
        munged += [f"--{name}-file={self.folder}/munge.{name}" for name in ("pid", "log", "seed")]
        self._daemons.append(subprocess.Popen(munged, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        self._daemon(0, "unshare", "--uts", "sh", "-c", 'hostname "$0"; exec slurmctld -D', self.hosts[0])
        for index, host in enumerate(self.hosts):
            self._daemon(index, "unshare", "--uts", "--mount", "sh", "-c", DAEMON, "sh", host)
        deadline = time.monotonic() + START_S
        while (states := self.run(["sinfo", "-h", "-o", "%T %D"]).stdout.strip()) != "idle 2":
            assert time.monotonic() < deadline, f"Slurm did not start: {states}, logs in {self.folder}"
            time.sleep(0.2)

    def _daemon(self, index, *command):
        self._daemons.append(
            subprocess.Popen(
                [*self._network.run_in(index), *command],
                env=self.environment(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )

    def environment(self, *, mpich=False, **variables):
        """What a user on a host has: no launcher's variables, a PATH with `python` and one MPI."""
        own = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        paths = [str(self.folder / "bin")] + [str(self.folder / "bin" / "mpich")] * mpich + [SITE_PATH]
        agent = str(self.folder / "bin" / "agent")
        return own | {
            "PATH": ":".join(paths),
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            # What ssh without a password is on a real one.
            **{"HYDRA_LAUNCHER": "ssh", "HYDRA_LAUNCHER_EXEC": agent, "OMPI_MCA_plm_rsh_agent": agent},
            **{"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
            **variables,
        }

    def start(self, command, host=0, **variables):
        """A Popen of `command`, words or a line for sh, on a host under its name."""
        words = ["sh", "-c", command] if isinstance(command, str) else list(command)
        mpich = "mpiexec" in words[-1] or words[0] == "mpiexec"
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', self.hosts[host], *words]
        return subprocess.Popen(
            [*self._network.run_in(host), *named],
            env=self.environment(mpich=mpich, **variables),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, command, host=0, timeout_s=60.0, **variables):
        """The CompletedProcess of `start`."""
        process = self.start(command, host, **variables)
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
            return subprocess.CompletedProcess(command, -9, output, f"{errors}\nended after {timeout_s:g} s")
        return subprocess.CompletedProcess(command, process.returncode, output, errors)
