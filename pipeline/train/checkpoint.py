"""Checkpoints: a file with the whole state of training."""

import contextlib
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lanterne.errors import InputError
from lanterne.pipeline.train.state import VECTORS, TrainingState


def save(path: str | Path, state: TrainingState, about: Mapping[str, Any]) -> None:
    """Replace file `path` by `state` and `about`, a JSON object; a reader finds the old file or the new one.

    This holds after a power failure too: the data are on the disk before the name is.

    Raises:
        InputError: the folder does not exist or cannot be written.
    """
    path = Path(path)
    # Of one name, so that what a killed run left is overwritten by the next.
    temporary = path.with_name(f".{path.name}.part")
    header = json.dumps({"about": about, "iteration": state.iteration, "steps": state.steps})
    arrays: dict[str, Any] = {"header": np.array(header), **state.vectors}
    try:
        with open(temporary, "wb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise InputError(f"cannot write {path}: {error.strerror}") from error


def load(path: str | Path, about: Mapping[str, Any]) -> TrainingState:
    """Return the TrainingState in file `path`, saved by a run with the same `about`.

    Raises:
        InputError: the file cannot be read, is no checkpoint, or of another `about`: names the first difference.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            header = json.loads(str(file["header"]))
            vectors = [file[name] for name in VECTORS]
            found = header["about"]
            state = TrainingState.of_vectors(int(header["iteration"]), int(header["steps"]), *vectors)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: is no checkpoint of lanterne, expected a file that --checkpoint wrote") from error
    for key, value in about.items():
        if found.get(key) != value:
            raise InputError(f"{path}: was saved with {key} {found.get(key)}, expected {value}, as this run has it")
    return state
