"""What started this process, and where in its job it stands, as its environment says. Pure: nothing is loaded.

`find_launch` reads the variables of lanterne's own launcher, MPI's (Open MPI, MPICH and what speaks PMI or PMIx as
srun does), torchrun's and what is like it, Slurm's srun without MPI, and Kubernetes' Indexed Jobs. What gives half of
its variables, or contradicts another, is refused: a job of four must not become four jobs of one.
"""

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from lanterne.errors import InputError

# How the ranks of a launcher meet: at a store that it names, by MPI, at an address that it names, or at one that
# follows from the job's number and hosts; not at all.
Way: TypeAlias = Literal["store", "mpi", "address", "step", "alone"]
# Below the ports that systems hand out to anybody, from 32768.
FIRST_STEP_PORT, NUM_STEP_PORTS = 20000, 12000


class Launcher(NamedTuple):
    """Something that starts ranks.

    Attributes:
        name: for people.
        rank, world_size: the variables that say them.
        library: of which family MPI's library has to be for this launcher: "mpich", "openmpi"; "": no MPI.
    """

    name: str
    rank: str
    world_size: str
    way: Way
    library: str = ""


OURS = Launcher("lanterne -n", "RANK", "WORLD_SIZE", "store")
OPEN_MPI = Launcher("Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "mpi", "openmpi")
MVAPICH = Launcher("MVAPICH's launcher", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "mpi", "mpich")
PMI = Launcher("an MPI launcher by PMI", "PMI_RANK", "PMI_SIZE", "mpi", "mpich")
# srun; what else speaks PMIx sets Open MPI's variables too.
PMIX = Launcher("srun --mpi=pmix", "PMIX_RANK", "SLURM_STEP_NUM_TASKS", "mpi", "openmpi")
TORCHRUN = Launcher("torchrun-style variables", "RANK", "WORLD_SIZE", "address")
# Kubernetes says no size; the Job's manifest does.
KUBERNETES = Launcher("an Indexed Job of Kubernetes", "JOB_COMPLETION_INDEX", "WORLD_SIZE", "address")
SLURM = Launcher("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "step")
NOBODY = Launcher("no launcher", "", "", "alone")
# In the order in which they are believed.
MPI_LAUNCHERS = (OPEN_MPI, MVAPICH, PMI)
MEETING = ("MASTER_ADDR", "MASTER_PORT")
# Open MPI's ranks have PMIX_RANK too; then it is no launcher of its own.
MPI_VARIABLES: tuple[str, ...] = (*(name for one in MPI_LAUNCHERS for name in (one.rank, one.world_size)), PMIX.rank)
# All that `find_launch` reads.
VARIABLES: tuple[str, ...] = (
    *(
        "LANTERNE_STORE",
        "LANTERNE_LAUNCHER",
        *MPI_VARIABLES,
        "RANK",
        "WORLD_SIZE",
        *MEETING,
        "TORCHELASTIC_RUN_ID",
        "JOB_COMPLETION_INDEX",
    ),
    *("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_STEP_ID", "SLURM_JOB_ID", "SLURM_STEP_NODELIST"),
    *("SLURM_JOB_NODELIST",),
)


@dataclass(frozen=True)
class Launch:
    """The place of this process in its job. `world_size` 0: only MPI knows."""

    launcher: Launcher
    rank: int
    world_size: int


ALONE = Launch(NOBODY, 0, 1)


@dataclass(frozen=True)
class SlurmStep:
    """A job step of Slurm as its ranks can meet in it: `name`, the job's number and the step's; `host`, the first one;
    `port`, which follows from the name."""

    name: str
    host: str
    port: int


def find_launch(variables: Mapping[str, str]) -> Launch:
    """Where `variables` (an environment) say that this process stands; ALONE where no launcher's are there.

    Raises:
        InputError: a launcher gives half of its variables or bad ones, or two contradict each other.
    """
    # Under another launcher the URL of a Redis may be set as well.
    if "LANTERNE_STORE" in variables and ("LANTERNE_LAUNCHER" in variables or not _names_redis(variables)):
        return _read(OURS, variables)
    told = [launch for launcher in MPI_LAUNCHERS if (launch := _read_mpi(launcher, variables))]
    if not told and PMIX.rank in variables:
        # Where nothing says how many they are, MPI knows.
        size = _number(PMIX.world_size, variables, 0)
        told = [_read(PMIX, variables, size) if size else Launch(PMIX, _number(PMIX.rank, variables), 0)]
    address = _read_address(variables, else_told=bool(told))
    if address is not None:
        if "TORCHELASTIC_RUN_ID" in variables:  # torchrun, which another launcher may have started on each host
            return address
        told.append(address)
    # One that started a single process may have started a launcher: the other.
    larger = [launch for launch in told if launch.world_size != 1] or told[:1]
    for launch in larger[1:]:
        if (launch.rank, launch.world_size) != (larger[0].rank, larger[0].world_size):
            raise InputError(
                f"two launchers: got {_words(larger[0])} and {_words(launch)}, expected one; start the program by one "
                f"of them, or unset the variables of the other"
            )
    return larger[0] if larger else _read_slurm(variables)


def find_step(variables: Mapping[str, str]) -> SlurmStep:
    """Where the ranks of a step that `find_launch` found to be Slurm's meet.

    Raises:
        InputError: variables that say it are missing.
    """
    job, step = _either(variables, "SLURM_JOB_ID", "SLURM_JOBID"), _either(variables, "SLURM_STEP_ID", "SLURM_STEPID")
    name = f"{job}.{step}"
    hosts = _either(variables, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")
    first = first_host(hosts)
    port = FIRST_STEP_PORT + zlib.crc32(name.encode()) % NUM_STEP_PORTS
    return SlurmStep(name, "127.0.0.1" if first == hosts else first, port)


def first_host(hosts: str) -> str:
    """The first of a list of hosts as Slurm writes it: node3 of "node[3-5,8],gpu1"."""
    found = re.match(r"(?:[^,\[\]]|\[[^\[\]]*\])*", hosts)
    return re.sub(r"\[([^],-]*)[^]]*\]", r"\1", found[0] if found else hosts)


def in_a_batch_script(variables: Mapping[str, str]) -> int:
    """The tasks of the allocation whose batch script this process runs in, itself no task of it; 0: in none."""
    if "SLURM_JOB_ID" not in variables or "SLURM_STEP_ID" in variables or "SLURM_PROCID" not in variables:
        return 0
    return _number("SLURM_NTASKS", variables, 0)


def ranks_beside(variables: Mapping[str, str], world_size: int) -> int:
    """How many ranks an MPI launcher started on this host, as it says; where it does not, those of the whole job."""
    for name in ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"):
        if variables.get(name, "").isdecimal():
            return int(variables[name])
    return max(1, world_size // max(1, _number("SLURM_STEP_NUM_NODES", variables, 1)))


def _number(name: str, variables: Mapping[str, str], missing: int | None = None) -> int:
    text = variables.get(name)
    if text is None and missing is not None:
        return missing
    if text is None or not (text.isascii() and text.isdigit()):
        raise InputError(f"{name}: got {'' if text is None else text!r}, expected a number")
    return int(text)


def _read(launcher: Launcher, variables: Mapping[str, str], world_size: int | None = None) -> Launch:
    """The place that `launcher` tells."""
    rank = _number(launcher.rank, variables)
    if world_size is None:
        world_size = _number(launcher.world_size, variables)
    if not rank < world_size:
        raise InputError(f"{launcher.rank}: got {rank}, expected less than {launcher.world_size}, {world_size}")
    return Launch(launcher, rank, world_size)


def _read_mpi(launcher: Launcher, variables: Mapping[str, str]) -> Launch | None:
    names = (launcher.rank, launcher.world_size)
    here = [name for name in names if name in variables]
    if not here:
        return None
    if len(here) == 1:
        (missing,) = set(names) - {*here}
        raise InputError(
            f"{missing}: not set beside {here[0]}={variables[here[0]]}, expected both, as {launcher.name} sets them; "
            f"pass all of its variables on to the program, or unset {here[0]}"
        )
    return _read(launcher, variables)


def _read_address(variables: Mapping[str, str], *, else_told: bool) -> Launch | None:
    """The place by torchrun-style variables; None without them, or where they are too few, but another has told."""
    launcher = KUBERNETES if "RANK" not in variables and KUBERNETES.rank in variables else TORCHRUN
    needed = (launcher.rank, launcher.world_size, *(() if _names_redis(variables) else MEETING))
    missing = [name for name in needed if name not in variables]
    if not missing:
        return _read(launcher, variables)
    world_size = variables.get("WORLD_SIZE")
    by_itself = launcher is TORCHRUN and world_size is None and variables.get("RANK", "0") == "0"
    if else_told or by_itself or world_size == "1" or "SLURM_STEP_ID" in variables:
        return None
    here = [f"{name}={variables[name]}" for name in needed if name in variables]
    raise InputError(
        f"{missing[0]}: not set beside {', '.join(here)}, expected all of {', '.join(needed)}"
        + ("; the Job's manifest sets them: docs/launch/kubernetes.md" if launcher is KUBERNETES else "")
    )


def _names_redis(variables: Mapping[str, str]) -> bool:
    """Return whether the ranks find their store in a Redis."""
    return "://" in variables.get("LANTERNE_STORE", "")


def _read_slurm(variables: Mapping[str, str]) -> Launch:
    if SLURM.rank not in variables:
        return ALONE
    in_a_step = "SLURM_STEP_ID" in variables or "SLURM_STEPID" in variables
    name = SLURM.world_size if in_a_step and SLURM.world_size in variables else "SLURM_NTASKS"
    world_size = _number(name, variables, 1 if name == "SLURM_NTASKS" else None)
    if not in_a_step and variables[SLURM.rank] == "0" and "SLURM_JOB_ID" in variables:
        return ALONE  # a batch script
    if world_size == 1 and variables[SLURM.rank] == "0":
        return ALONE  # srun --pty bash
    launch = _read(SLURM._replace(world_size=name), variables, world_size)
    find_step(variables)
    return launch


def _either(variables: Mapping[str, str], *names: str) -> str:
    for name in names:
        if variables.get(name):
            return variables[name]
    raise InputError(
        f"{names[0]}: not set beside SLURM_PROCID={variables['SLURM_PROCID']}, expected it, as srun sets it; pass all "
        "of srun's variables on to the program, or unset SLURM_PROCID"
    )


def _words(launch: Launch) -> str:
    names = launch.launcher
    size = str(launch.world_size) if launch.world_size else "unknown"
    return f"{names.rank}={launch.rank} with {names.world_size}={size} ({names.name})"
