"""Training state that goes from some ranks to others through a file, where a restart changes who takes part (S4)."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lanterne.errors import InputError
from lanterne.pipeline.train.checkpoint import TrainingState, load, save

if TYPE_CHECKING:
    from lanterne.collectives.communicator import Communicator

# Of a path that ranks tell each other.
MAX_PATH_NBYTES = 4096


class Handoff:
    """One state on its way; every rank of `comm` makes it, and makes the same calls up to `end`.

    Args:
        writer: the rank that writes it.
        checkpoint: the file, in a folder that all hosts share; None: a temporary one.
    """

    def __init__(self, comm: Communicator, writer: int, checkpoint: str | Path | None) -> None:
        self._rank = comm.rank
        self._writer = writer
        self._is_temporary = checkpoint is None
        self._path = _new_file(comm, writer) if checkpoint is None else Path(checkpoint)

    def give(self, state: TrainingState) -> None:
        """Write `state`, on the rank that does; the ranks that have it all call this."""
        if self._rank == self._writer:
            save(self._path, state, {})

    def take(self) -> TrainingState:
        """Read it, on a rank that needs it, once it is written.

        Raises:
            InputError: this rank does not see the file.
        """
        if not self._path.exists():
            raise InputError(
                f"restart: rank {self._rank} does not see {self._path}, which rank {self._writer} wrote, expected a "
                "folder that all hosts share: name a checkpoint in one (--checkpoint), or set TMPDIR to one"
            )
        return load(self._path, {})

    def end(self) -> None:
        """All that need it have taken it: a temporary file goes."""
        if self._is_temporary and self._rank == self._writer:
            shutil.rmtree(self._path.parent)


def _new_file(comm: Communicator, writer: int) -> Path:
    """A file to be, in a new folder of rank `writer` that only its user can enter; the same on all ranks."""
    told = np.zeros(MAX_PATH_NBYTES, np.uint8)
    if comm.rank == writer:
        folder = os.fsencode(tempfile.mkdtemp(prefix="lanterne-"))
        told[: len(folder)] = np.frombuffer(folder, np.uint8)
    comm.broadcast(told, writer)
    return Path(os.fsdecode(told.tobytes().rstrip(b"\0")), "state.npz")
